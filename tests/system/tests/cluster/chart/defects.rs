//! The eight defects of Graphcore's chart 1.2.0: each check passes on the chart, and reports a copy of the
//! chart that has the defect.

use serde_json::Value;

use super::planted::{Check, assert_reported, containers, strings};
use super::rendering::objects;
use super::values::effects;

#[test]
fn no_value_is_ignored_or_crossed() {
    /// Those that the original chart ignores or uses at another place.
    const KEYS: [&str; 7] = [
        "admissionWebhooks.failurePolicy",
        "admissionWebhooks.service.annotations",
        "admissionWebhooks.service.type",
        "controller.podAnnotations",
        "controller.podSecurityContext={\"runAsUser\":5}",
        "controller.securityContext",
        "vipuProxy.proxyPartitionTrackerConfigMap",
    ];
    let check: Check = |chart| {
        let mut findings = Vec::new();
        for key in KEYS {
            let effects: Vec<_> = effects()
                .into_iter()
                .filter(|effect| effect.option.starts_with(key))
                .collect();
            assert!(!effects.is_empty(), "{key}");
            let objects = chart.objects(&[&effects[0].option]);
            let ignored = effects
                .iter()
                .filter(|effect| effect.option == effects[0].option)
                .filter(|effect| effect.find(&objects) != effect.expected);
            findings.extend(ignored.map(|effect| format!("{} is ignored", effect.option)));
        }
        findings
    };
    let plants = [
        (
            "webhooks.yaml",
            "{{ $.Values.admissionWebhooks.failurePolicy }}",
            "Fail",
        ),
        (
            "operator.yaml",
            "{{- with .Values.controller.securityContext }}",
            "{{- with .Values.controller.podSecurityContext }}",
        ),
    ];
    assert_reported("no_value_is_ignored_or_crossed", check, &plants);
}

#[test]
fn certificates_have_the_names_of_the_services() {
    let check: Check = |chart| {
        let options = [
            r#"nameOverride="other""#,
            r#"fullnameOverride="mine""#,
            "certManager.enabled=true",
        ];
        let objects = chart.objects(&options);
        let flags = containers(&objects)
            .into_iter()
            .flat_map(|container| strings(&container["args"]))
            .filter_map(|flag| flag.strip_prefix("--")?.split_once("-service="))
            .map(|(_, name)| name);
        let certificate = &objects["Certificate/mine-webhook-certificate"]["spec"]["dnsNames"];
        let names = strings(certificate).map(|name| name.split('.').next().unwrap());
        let all: Vec<&str> = flags.chain(names).collect();
        assert!(all.len() >= 4, "{all:?}");
        all.into_iter()
            .filter(|name| !objects.contains_key(&format!("Service/{name}")))
            .map(|name| format!("no Service has the name {name}"))
            .collect()
    };
    let plants = [(
        "operator.yaml",
        r#"--webhook-service={{ include "ipu-operator.webhookService" . }}"#,
        "--webhook-service={{ .Chart.Name }}-webhook-svc",
    )];
    assert_reported("certificates_have_the_names_of_the_services", check, &plants);
}

#[test]
fn a_rendering_has_no_certificate_and_changes_nothing() {
    let check: Check = |chart| {
        let [first, second] = [(), ()].map(|()| chart.render("gc", "ipu", &[]));
        let mut findings = Vec::new();
        if first != second {
            findings.push("two renderings differ".to_owned());
        }
        let lines = first.lines().map(str::trim);
        findings.extend(
            lines
                .filter(|line| line.starts_with("caBundle:") || *line == "kind: Secret")
                .map(str::to_owned),
        );
        findings
    };
    let plants = [(
        "webhooks.yaml",
        "  clientConfig:\n",
        "  clientConfig:\n    caBundle: {{ (genCA \"ca\" 365).Cert | b64enc }}\n",
    )];
    assert_reported(
        "a_rendering_has_no_certificate_and_changes_nothing",
        check,
        &plants,
    );
}

#[test]
fn two_releases_share_no_name_outside_namespaces() {
    let check: Check = |chart| {
        let names = |release: &str, namespace: &str| {
            let options = [r#"serviceMonitor={"enabled":true,"account":"a:b"}"#];
            let mut objects = objects(&chart.render(release, namespace, &options));
            objects.retain(|_, object| object["metadata"]["namespace"].is_null());
            assert!(objects.len() >= 5, "{:?}", objects.keys());
            objects
        };
        let second = names("second", "two");
        let mut shared = names("first", "one");
        shared.retain(|name, _| second.contains_key(name));
        shared.into_keys().collect()
    };
    let plants = [(
        "_names.tpl",
        r#"{{ include "ipu-operator.fullname" . }}-admission"#,
        "ipu-operator-admission",
    )];
    assert_reported("two_releases_share_no_name_outside_namespaces", check, &plants);
}

#[test]
fn a_hanging_program_is_restarted_within_minutes() {
    let check: Check = |chart| {
        let objects = chart.objects(&["simulator.enabled=true"]);
        let mut findings = Vec::new();
        for container in containers(&objects) {
            let probe = &container["livenessProbe"];
            let number = |key: &str, default: u64| probe[key].as_u64().unwrap_or(default);
            let seconds = number("initialDelaySeconds", 0)
                + number("periodSeconds", 10) * number("failureThreshold", 3);
            let is_simulator = container["name"].as_str().unwrap().contains("vipu-s");
            if seconds > 180 || (probe.is_null() && !is_simulator) {
                findings.push(format!("{}: {seconds} s", container["name"]));
            }
        }
        findings
    };
    let plants = [("operator.yaml", "periodSeconds: 10\n", "periodSeconds: 20000\n")];
    assert_reported("a_hanging_program_is_restarted_within_minutes", check, &plants);
}

#[test]
fn the_proxy_is_probed_replicated_and_may_write_its_own_configmaps_only() {
    let check: Check = |chart| {
        let objects = chart.objects(&["vipuProxy.replicas=3"]);
        let name = "ipu-operator-vipu-proxy";
        let deployment = &objects[&format!("Deployment/{name}")]["spec"];
        let mut findings = Vec::new();
        let probe = deployment.pointer("/template/spec/containers/0/readinessProbe/httpGet");
        if probe.is_none() {
            findings.push("no readiness probe".to_owned());
        }
        if deployment["replicas"] != 3 || !objects.contains_key(&format!("PodDisruptionBudget/{name}")) {
            findings.push("not replicated".to_owned());
        }
        let rules = objects[&format!("ClusterRole/{name}")]["rules"]
            .as_array()
            .unwrap();
        let is_wide =
            |rule: &&Value| strings(&rule["resources"]).any(|one| one == "configmaps" || one == "*");
        findings.extend(rules.iter().filter(is_wide).map(Value::to_string));
        findings
    };
    let plants = [
        ("proxy.yaml", "readinessProbe:", "startupProbe:"),
        ("_pods.tpl", "replicas: {{ .values.replicas }}", "replicas: 1"),
        (
            "proxy-access.yaml",
            "\nrules:\n",
            "\nrules:\n- {apiGroups: [\"\"], resources: [configmaps], verbs: [update]}\n",
        ),
    ];
    assert_reported(
        "the_proxy_is_probed_replicated_and_may_write_its_own_configmaps_only",
        check,
        &plants,
    );
}

#[test]
fn a_controller_can_have_credentials_and_tls() {
    let check: Check = |chart| {
        let options = [
            r#"global.vipuControllers="Pod1""#,
            r#"vipuProxy.controllersSecrets={"Pod1:8090":"a","default":"b"}"#,
        ];
        let objects = chart.objects(&options);
        let proxy = &objects["Deployment/ipu-operator-vipu-proxy"]["spec"]["template"]["spec"];
        let container = &proxy["containers"][0];
        let folder = strings(&container["args"]).find_map(|flag| flag.strip_prefix("--controllers-secrets="));
        let folder = folder.unwrap_or_default();
        let mounts = container["volumeMounts"].as_array().unwrap();
        let volumes = proxy["volumes"].as_array().unwrap();
        let mut findings = Vec::new();
        for (controller, secret) in [("pod1_8090", "a"), ("default", "b")] {
            let path = format!("{folder}/{controller}");
            let mount = mounts.iter().find(|one| one["mountPath"] == path);
            let volume = mount.and_then(|mount| volumes.iter().find(|one| one["name"] == mount["name"]));
            // All keys. Without the Secret, the Pod does not start instead of connecting without TLS.
            let expected = serde_json::json!({"secretName": secret});
            if volume.is_none_or(|volume| volume["secret"] != expected) {
                findings.push(format!("{path}: {volume:?}"));
            }
        }
        findings
    };
    let plants = [
        ("proxy.yaml", "--controllers-secrets=", "--secrets="),
        ("proxy.yaml", "| lower | replace \":\" \"_\"", ""),
        ("proxy.yaml", "| lower | replace", "| replace"),
        (
            "proxy.yaml",
            "secret: {secretName: {{ . }}}",
            "secret: {secretName: {{ . }}, optional: true}",
        ),
    ];
    assert_reported("a_controller_can_have_credentials_and_tls", check, &plants);
}

#[test]
fn all_images_are_of_this_project_and_of_one_registry() {
    let check: Check = |chart| {
        let options = [
            "simulator.enabled=true",
            "certManager.enabled=true",
            "controller.replicas=2",
            r#"global.imageRegistry="r.example.com""#,
        ];
        let text = chart.render("gc", "ipu", &options);
        let objects = objects(&text);
        let containers = containers(&objects);
        let launcher = text.lines().filter_map(|line| {
            let (_, value) = line.split_once("IPU_OPERATOR_LAUNCHER_IMAGE, value: ")?;
            Some(value.trim_matches(['"', '}']).to_owned())
        });
        let images = containers
            .iter()
            .map(|one| one["image"].as_str().unwrap().to_owned());
        let images: Vec<String> = images.chain(launcher).collect();
        assert!(images.len() >= 4, "{images:?}");
        let version = env!("CARGO_PKG_VERSION");
        let own = ["ipu-operator", "vipu-proxy", "vipu-sim", "ipu-launcher"]
            .map(|name| format!("r.example.com/{name}:{version}"));
        images.into_iter().filter(|image| !own.contains(image)).collect()
    };
    let plants = [(
        "operator.yaml",
        "      - name: manager\n",
        "      - {name: kube-rbac-proxy, image: \"gcr.io/kubebuilder/kube-rbac-proxy:v0.8.0\"}\n      - name: manager\n",
    )];
    assert_reported(
        "all_images_are_of_this_project_and_of_one_registry",
        check,
        &plants,
    );
}
