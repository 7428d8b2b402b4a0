//! Rules of Kubernetes about Pods that the schema of the CRD does not state. The API server would store a job
//! that breaks one, and refuse its Pods for ever, while the job holds IPUs.

use std::collections::BTreeSet;

use ipu_core::job::{Violation, Warning};
use ipu_core::render::IpuofEnv;
use serde_json::{Map, Value};

use super::MAX_LABEL_LEN;
use super::job_container::DEFAULT_CONTAINER;
use super::spec::IpuJob;

const METADATA_PATH: &str = "spec.workers.template.metadata";
const POD_SPEC_PATH: &str = "spec.workers.template.spec";

/// Maximum length in characters of a DNS-1123 subdomain.
const MAX_DOMAIN_LEN: usize = 253;
/// Maximum length in characters of the name of a port.
const MAX_PORT_NAME_LEN: usize = 15;

/// Volumes that the operator adds to the Pods of a job with a launcher.
const OPERATOR_VOLUMES: [&str; 2] = ["ipu-mpi-config", "ipu-tools"];

/// Factors of the suffixes of a quantity.
const QUANTITY_SUFFIXES: [(&str, f64); 14] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
];

impl IpuJob {
    /// Returns a warning for each field that the operator replaces.
    pub(super) fn replaced_fields(&self) -> Vec<Warning> {
        let mut all = Vec::new();
        let workers = self.spec.workers.as_ref();
        if workers.is_some_and(|workers| workers.host_network == Some(true)) {
            all.push(Warning::new(
                "spec.workers.hostNetwork",
                Some("true"),
                "has no effect: it can only disable the host network",
                "leave it out",
            ));
        }
        let pod = self.pod_spec().unwrap_or(&Value::Null);
        if let Some(policy) = pod["restartPolicy"].as_str().filter(|policy| *policy != "Never") {
            all.push(Warning::new(
                &format!("{POD_SPEC_PATH}.restartPolicy"),
                Some(policy),
                "is always Never: whole instances are restarted",
                "use spec.restartPolicy",
            ));
        }
        all.extend(self.absent_default_container());
        let mut warn = |field: &str, name: &str| {
            if IpuofEnv::selects_ipus(name) {
                all.push(Warning::new(
                    field,
                    Some(name),
                    "is removed: it selects IPUs, and only the variables of the job's own partition may do that",
                    "leave it out",
                ));
            }
        };
        let launcher = self.spec.launcher.iter().flat_map(|launcher| &launcher.env);
        launcher.for_each(|variable| warn("spec.launcher.env", &variable.name));
        for (field, container) in containers(pod) {
            let names = items(&container["env"]).filter_map(|(_, variable)| variable["name"].as_str());
            names.for_each(|name| warn(&format!("{field}.env"), name));
        }
        all
    }

    /// Returns the warning about an annotation without a container of its name: the first one is the job's.
    fn absent_default_container(&self) -> Option<Warning> {
        let template = self.spec.workers.as_ref()?.template.as_ref()?;
        let named = template.0["metadata"]["annotations"][DEFAULT_CONTAINER].as_str()?;
        let names = items(&template.0["spec"]["containers"]).filter_map(|(_, one)| one["name"].as_str());
        let names: Vec<&str> = names.collect();
        let first = names.first().filter(|_| !names.contains(&named))?;
        Some(Warning::new(
            &format!("{METADATA_PATH}.annotations.{DEFAULT_CONTAINER}"),
            Some(named),
            format!("names no container, and {first} runs the process of the job"),
            format!("write {}, or leave it out", names.join(" or ")),
        ))
    }

    /// Returns a violation for each container of the Pod template without an image. Kubernetes refuses it; a
    /// host needs no image.
    #[must_use]
    pub fn missing_images(&self) -> Vec<Violation> {
        let missing = containers(self.pod_spec().unwrap_or(&Value::Null))
            .filter(|(_, container)| container["image"].as_str().is_none_or(str::is_empty));
        let rule = "Kubernetes runs a container from an image";
        missing
            .map(|(field, _)| Violation::new(&format!("{field}.image"), None, rule, "add it"))
            .collect()
    }

    /// Returns the violations by which the API server would refuse the job's Pods.
    pub(super) fn refused_pods(&self) -> Vec<Violation> {
        let mut rules = Rules(Vec::new());
        let strings = |map: &Option<std::collections::BTreeMap<String, String>>| {
            let map = map.iter().flatten();
            map.map(|(name, value)| (name.clone(), Value::from(value.clone())))
                .collect::<Map<_, _>>()
        };
        rules.labels("metadata.labels", &strings(&self.metadata.labels));
        rules.keys("metadata.annotations", &strings(&self.metadata.annotations));
        let workers = self.spec.workers.as_ref();
        let template = workers.and_then(|workers| workers.template.as_ref());
        let template = template.map_or(&Value::Null, |template| &template.0);
        let empty = Map::new();
        let map = |value: &'_ Value| value.as_object().unwrap_or(&empty).clone();
        rules.labels(
            &format!("{METADATA_PATH}.labels"),
            &map(&template["metadata"]["labels"]),
        );
        rules.keys(
            &format!("{METADATA_PATH}.annotations"),
            &map(&template["metadata"]["annotations"]),
        );
        let pod = &template["spec"];
        rules.labels(
            &format!("{POD_SPEC_PATH}.nodeSelector"),
            &map(&pod["nodeSelector"]),
        );
        for field in ["hostname", "subdomain"] {
            if pod[field] != "" {
                rules.label_name(&format!("{POD_SPEC_PATH}.{field}"), &pod[field]);
            }
        }
        for (field, min) in [("terminationGracePeriodSeconds", 0), ("activeDeadlineSeconds", 1)] {
            rules.range(
                &format!("{POD_SPEC_PATH}.{field}"),
                &pod[field],
                min,
                i64::from(i32::MAX),
            );
        }
        rules.word(
            &format!("{POD_SPEC_PATH}.dnsPolicy"),
            &pod["dnsPolicy"],
            &DNS_POLICIES,
        );
        rules.volumes(
            pod,
            self.spec.launcher.is_some() || self.spec.interactive.is_some(),
        );
        rules.containers(pod);
        if let Some(launcher) = &self.spec.launcher {
            rules.resources(
                "spec.launcher.resources",
                launcher.resources.as_ref().unwrap_or(&Value::Null),
            );
        }
        rules.0
    }
}

const DNS_POLICIES: [&str; 4] = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];

/// The violations so far. Values of a wrong kind are those of the schema, and skipped here.
struct Rules(Vec<Violation>);

impl Rules {
    fn refuse(&mut self, field: &str, value: &str, rule: impl Into<String>, fix: impl Into<String>) {
        self.0.push(Violation::new(field, Some(value), rule, fix));
    }

    fn labels(&mut self, field: &str, labels: &Map<String, Value>) {
        self.keys(field, labels);
        for (name, value) in labels {
            let Some(text) = value.as_str().filter(|text| !text.is_empty() && !is_label(text)) else {
                continue;
            };
            self.refuse(
                &format!("{field}.{name}"),
                &format!("{text:?}"),
                "the value of a label has at most 63 letters, digits, '-', '_' and '.', and begins and ends with a letter or digit",
                match similar(text, |c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
                    None => "leave it empty".to_owned(),
                    Some(similar) => format!("use {similar}, for example, or an annotation"),
                },
            );
        }
    }

    fn keys(&mut self, field: &str, map: &Map<String, Value>) {
        for key in map.keys() {
            let (domain, name) = key
                .split_once('/')
                .map_or((None, &**key), |(domain, name)| (Some(domain), name));
            if !is_label(name) || domain.is_some_and(|domain| !is_domain(domain)) {
                self.refuse(
                    field,
                    &format!("{key:?}"),
                    "a key has at most 63 letters, digits, '-', '_' and '.', begins and ends with a letter or digit, and may follow a DNS domain and '/'",
                    "write team or example.com/team, for example",
                );
            }
        }
    }

    fn label_name(&mut self, field: &str, value: &Value) {
        let Some(text) = value.as_str().filter(|text| !is_dns_label(text)) else {
            return;
        };
        let similar = similar(&text.to_ascii_lowercase(), is_dns_char);
        self.refuse(
            field,
            &format!("{text:?}"),
            "must be at most 63 lower-case letters, digits and '-', beginning and ending with a letter or digit",
            format!("use {}, for example", similar.unwrap_or_else(|| "main".to_owned())),
        );
    }

    fn range(&mut self, field: &str, value: &Value, min: i64, max: i64) {
        let Some(number) = value.as_i64().filter(|number| !(min..=max).contains(number)) else {
            return;
        };
        let nearest = number.clamp(min, max);
        self.refuse(
            field,
            &number.to_string(),
            format!("must be from {min} to {max}"),
            format!("use {nearest}, for example"),
        );
    }

    /// Checks one of several words. The empty text counts as absent.
    fn word(&mut self, field: &str, value: &Value, words: &[&str]) {
        let Some(text) = value
            .as_str()
            .filter(|text| !text.is_empty() && !words.contains(text))
        else {
            return;
        };
        let like = words.iter().find(|word| word.eq_ignore_ascii_case(text));
        self.refuse(
            field,
            &format!("{text:?}"),
            format!("must be one of {}", words.join(", ")),
            like.map_or_else(|| "use one of them".to_owned(), |like| format!("write {like}")),
        );
    }

    fn volumes(&mut self, pod: &Value, has_launcher: bool) {
        let mut names = BTreeSet::new();
        for (index, volume) in items(&pod["volumes"]) {
            let field = format!("{POD_SPEC_PATH}.volumes[{index}]");
            self.label_name(&format!("{field}.name"), &volume["name"]);
            let name = volume["name"].as_str().unwrap_or_default();
            names.insert(name);
            if has_launcher && OPERATOR_VOLUMES.contains(&name) {
                let rule = "the operator adds a volume of this name to the Pods of a job with a launcher";
                self.refuse(&format!("{field}.name"), name, rule, "use another name");
            }
            let sources = volume.as_object().into_iter().flat_map(Map::keys);
            let sources: Vec<&str> = sources.map(String::as_str).filter(|key| *key != "name").collect();
            if sources.len() > 1 {
                let rule = "a volume has one source";
                self.refuse(&field, &sources.join(", "), rule, "make a volume of each");
            }
        }
        for (field, container) in containers(pod) {
            for list in ["volumeMounts", "volumeDevices"] {
                for (index, mount) in items(&container[list]) {
                    let field = format!("{field}.{list}[{index}].name");
                    if let Some(name) = mount["name"].as_str().filter(|name| !names.contains(name)) {
                        self.refuse(
                            &field,
                            name,
                            format!("no volume of {POD_SPEC_PATH}.volumes has this name"),
                            "add the volume, or use the name of another one",
                        );
                    }
                }
            }
        }
    }

    fn containers(&mut self, pod: &Value) {
        let mut names = BTreeSet::new();
        for (field, container) in containers(pod) {
            self.label_name(&format!("{field}.name"), &container["name"]);
            if let Some(name) = container["name"].as_str().filter(|name| !names.insert(*name)) {
                let rule = "another container of the Pod has the same name";
                self.refuse(&format!("{field}.name"), name, rule, "use another name");
            }
            for (name, words) in [
                ("imagePullPolicy", ["Always", "IfNotPresent", "Never"].as_slice()),
                ("terminationMessagePolicy", &["File", "FallbackToLogsOnError"]),
            ] {
                self.word(&format!("{field}.{name}"), &container[name], words);
            }
            for (index, variable) in items(&container["env"]) {
                let is_set = variable["value"].as_str().is_some_and(|value| !value.is_empty());
                if is_set && !variable["valueFrom"].is_null() {
                    self.refuse(
                        &format!("{field}.env[{index}].valueFrom"),
                        "{…}",
                        "a variable has either value or valueFrom",
                        "remove one of them",
                    );
                }
            }
            let mut port_names = BTreeSet::new();
            for (index, port) in items(&container["ports"]) {
                let field = format!("{field}.ports[{index}]");
                for (name, min) in [("containerPort", 1), ("hostPort", 0)] {
                    self.range(&format!("{field}.{name}"), &port[name], min, i64::from(u16::MAX));
                }
                self.word(
                    &format!("{field}.protocol"),
                    &port["protocol"],
                    &["TCP", "UDP", "SCTP"],
                );
                let name = port["name"].as_str().filter(|name| !name.is_empty());
                if let Some(name) = name.filter(|name| !port_names.insert(*name)) {
                    let rule = "another port of the container has the same name";
                    self.refuse(&format!("{field}.name"), name, rule, "use another name");
                }
                if let Some(name) = name.filter(|name| !is_port_name(name)) {
                    self.refuse(
                        &format!("{field}.name"),
                        &format!("{name:?}"),
                        "must be at most 15 lower-case letters, digits and single '-' between them, with a letter",
                        "use http, for example",
                    );
                }
            }
            self.resources(&format!("{field}.resources"), &container["resources"]);
        }
    }

    fn resources(&mut self, field: &str, resources: &Value) {
        let amount = |list: &str, name: &str| {
            let value = &resources[list][name];
            let text = value
                .as_str()
                .map(str::to_owned)
                .or_else(|| Some(value.as_i64()?.to_string()))?;
            let number = quantity(&text);
            Some((text, number))
        };
        for list in ["limits", "requests"] {
            for name in resources[list].as_object().into_iter().flat_map(Map::keys) {
                let field = format!("{field}.{list}.{name}");
                match amount(list, name) {
                    Some((text, None)) => self.refuse(
                        &field,
                        &format!("{text:?}"),
                        "must be a quantity of at least 0: a number with a suffix such as m, k, M, G, Ki, Mi or Gi",
                        "write 500m or 2Gi, for example",
                    ),
                    Some((text, Some(requested))) if list == "requests" => {
                        let Some((limit, Some(most))) = amount("limits", name) else {
                            continue;
                        };
                        // Equal amounts in different units may differ by rounding.
                        if requested > most * (1.0 + f64::EPSILON * 4.0) {
                            let rule = format!("a request is at most the limit, which is {limit}");
                            self.refuse(&field, &text, rule, format!("use at most {limit}"));
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Returns the init containers and the containers of a Pod with their paths.
fn containers(pod: &Value) -> impl Iterator<Item = (String, &Value)> {
    ["initContainers", "containers"]
        .into_iter()
        .flat_map(move |list| {
            items(&pod[list])
                .map(move |(index, container)| (format!("{POD_SPEC_PATH}.{list}[{index}]"), container))
        })
}

fn items(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}

/// Returns a quantity of Kubernetes as a number; none if the text is not one, or is negative.
fn quantity(text: &str) -> Option<f64> {
    let suffix = QUANTITY_SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    // E is both a suffix and the exponent of a number.
    let (number, factor) = suffix
        .or_else(|| Some((text.strip_suffix('E')?, 1e18)))
        .unwrap_or((text, 1.0));
    // An exponent takes the place of a suffix.
    let others = if number.len() < text.len() { "+-." } else { "+-.eE" };
    let is_number = number.chars().all(|c| c.is_ascii_digit() || others.contains(c));
    let number: f64 = number.parse().ok().filter(|_| is_number)?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

fn is_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    has_ends(text, |c| c.is_ascii_alphanumeric()) && text.len() <= MAX_LABEL_LEN && text.chars().all(is_inner)
}

fn is_dns_char(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'
}

/// Returns whether `text` is a DNS-1123 label, such as the name of a container or of a namespace.
pub(super) fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL_LEN
        && has_ends(text, |c| c.is_ascii_alphanumeric())
        && text.chars().all(is_dns_char)
}

fn is_domain(text: &str) -> bool {
    let is_part = |part: &str| has_ends(part, |c| c.is_ascii_alphanumeric()) && part.chars().all(is_dns_char);
    text.len() <= MAX_DOMAIN_LEN && text.split('.').all(is_part)
}

fn is_port_name(text: &str) -> bool {
    text.len() <= MAX_PORT_NAME_LEN
        && is_dns_label(text)
        && !text.contains("--")
        && text.contains(|c: char| c.is_ascii_lowercase())
}

/// Returns whether the first and the last character are of a kind.
fn has_ends(text: &str, is_end: fn(char) -> bool) -> bool {
    text.starts_with(is_end) && text.ends_with(is_end)
}

/// Returns a valid text similar to `text`: other characters become '-'; none if nothing is left.
pub(super) fn similar(text: &str, is_valid: impl Fn(char) -> bool) -> Option<String> {
    let valid = |c: char| if is_valid(c) { c } else { '-' };
    let text: String = text.chars().take(MAX_LABEL_LEN).map(valid).collect();
    let text = text.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    (!text.is_empty()).then(|| text.to_owned())
}
