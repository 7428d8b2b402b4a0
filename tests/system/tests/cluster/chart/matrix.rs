//! Renderings of at least 60 value sets by both Helms, which kubeconform validates: each pair of two levels
//! of [`FACTORS`], sets that belong together, and values files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use ipu_test_cluster::{Tool, find_tools};

use super::rendering::Renderer;
use super::schemas::{VERSIONS, validate};
use super::server::RENDERINGS;
use crate::installation::repository;

/// Levels of values: the options of `--set-json`, separated by `;;`.
const FACTORS: [&[&str]; 14] = [
    &[
        "",
        r#"watchNamespaces=["a"]"#,
        r#"watchNamespaces="a,b""#,
        r#"admissionWebhooks.scope="b""#,
        r#"admissionWebhooks.scope=["a","c"]"#,
        r#"watchNamespaces=["c"];;admissionWebhooks.scope=["c"]"#,
        r#"watchNamespaces=[]"#,
    ],
    &[
        "",
        r#"global.imageRegistry="r.example.com""#,
        r#"controller.image={"repository":"x/y","tag":1.5}"#,
        r#"vipuProxy.image={"digest":"sha256:12"}"#,
        r#"global.launcherImage="l@sha256:12""#,
        r#"global.launcherImageTag=2;;global.imagePullSecrets=["a",{"name":"b"}]"#,
        r#"vipuProxy.image.pullPolicy="Always";;controller.image.pullPolicy="Never""#,
    ],
    &[
        "",
        r#"fullnameOverride="mine""#,
        r#"fullNameOverride="mine""#,
        r#"nameOverride="ipu""#,
    ],
    &[
        "",
        "controller.replicas=3",
        "vipuProxy.replicas=2",
        "controller.replicas=2;;vipuProxy.replicas=3",
    ],
    &[
        "",
        "certManager.enabled=true",
        r#"certManager={"enabled":true,"issuerRef":{"kind":"ClusterIssuer","name":"a"}}"#,
        r#"admissionWebhooks.existingSecret="a";;admissionWebhooks.annotations={"b":"c"}"#,
        r#"admissionWebhooks.existingSecret="a";;admissionWebhooks.caBundle="-----BEGIN CERTIFICATE-----""#,
    ],
    &[
        "",
        "controller.hostNetwork=true",
        r#"controller.hostNetwork=true;;controller.dnsPolicy="Default""#,
        "worker.hostNetwork=false;;controller.develLogs=true",
    ],
    &[
        "",
        "networkPolicy.enabled=true",
        r#"networkPolicy.proxyClients=[{"podSelector":{}}];;networkPolicy.enabled=true"#,
        r#"networkPolicy.egress=[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8"}}],"ports":[{"port":443}]}]"#,
    ],
    &[
        "",
        "simulator.enabled=true",
        r#"global.vipuControllers=[{"host":"a","label":"x=y"},"b:9"]"#,
        r#"vipuControllers="a:1:x=y""#,
    ],
    &[
        "",
        r#"controller.serviceAccount={"create":false,"name":"a"}"#,
        "controller.rbac.create=false",
        r#"vipuProxy.serviceAccount={"create":false,"name":"b"}"#,
        "vipuProxy.rbac.create=false;;administrator.create=true",
    ],
    &[
        "",
        r#"vipuProxy.quotas=[{"namespace":"a","maxIpus":4},{"account":"c","namespaces":["*"],"maxIpus":0}]"#,
        r#"vipuProxy.placements={"a:8090":"delegated","[fd00::1]:8090":"first-fit"};;vipuProxy.controllersSecrets={"default":"s"}"#,
        r#"vipuProxy.priorities=[{"maxPriority":0}];;vipuProxy.preemption=true"#,
    ],
    &[
        "",
        r#"controller.service.type="LoadBalancer";;vipuProxy.service={"type":"NodePort","port":81}"#,
        r#"admissionWebhooks.service={"type":"NodePort","servicePort":444,"annotations":{"a":"b"}}"#,
        "admissionWebhooks.port=9444;;vipuProxy.proxyPort=8081;;controller.service.port=9000",
    ],
    &[
        "",
        r#"controller.podSecurityContext={"runAsUser":null};;vipuProxy.podSecurityContext={"fsGroup":1}"#,
        r#"controller.securityContext={"capabilities":null};;vipuProxy.securityContext={"runAsUser":5}"#,
        r#"controller.resources={"limits":{"cpu":1}};;vipuProxy.resources={"requests":{"memory":"100Mi"}}"#,
    ],
    &[
        "",
        r#"controller.tolerations=[{"operator":"Exists"}];;vipuProxy.nodeSelector={"a":"b"}"#,
        r#"vipuProxy.affinity={"nodeAffinity":{}};;controller.priorityClassName="high""#,
        r#"controller.topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"z","whenUnsatisfiable":"DoNotSchedule"}]"#,
        r#"controller.podLabels={"a":"b"};;vipuProxy.podAnnotations={"a":"b"};;commonLabels={"team":"a"}"#,
    ],
    &[
        "",
        "crds.maintain=false",
        r#"serviceMonitor={"enabled":true,"account":"mon:prom","labels":{"a":"b"}}"#,
        r#"monitoring={"prometheusRule":{"enabled":true},"dashboards":{"enabled":true}}"#,
        r#"extraObjects=["{apiVersion: v1, kind: ConfigMap, metadata: {name: b}}"]"#,
        r#"controller.extraEnv=[{"name":"A","value":"b"}];;vipuProxy.extraArgs=["--x=1"]"#,
    ],
];

/// A pair of two levels: factor and level of each.
type Pair = [(usize, usize); 2];

#[test]
fn kubeconform_accepts_all_renderings() {
    let name = "kubeconform_accepts_all_renderings";
    let (Some(renderer), Some(tools)) = (Renderer::find(name), find_tools(name, &[Tool::Kubeconform])) else {
        return;
    };
    let sets = value_sets();
    assert!(sets.len() >= 60, "{} value sets", sets.len());
    let folder = tempfile::tempdir().unwrap();
    for (number, set) in sets.iter().enumerate() {
        let [helm3, helm4] = Tool::HELM.map(|helm| {
            let text = rendering(&renderer, helm, number);
            assert!(!text.contains("cluster.local"), "{helm:?}: {set:?}");
            fs::write(folder.path().join(format!("{number}-{}.yaml", helm.name())), text).unwrap();
            documents(text)
        });
        assert_eq!(helm3, helm4, "{set:?}");
    }
    for version in VERSIONS {
        let output = validate(&tools.path(Tool::Kubeconform), version, folder.path());
        assert_eq!(output, "", "{version}");
    }
}

#[test]
fn the_value_sets_cover_all_pairs() {
    let rows = pairwise();
    for pair in all_pairs() {
        assert!(rows.iter().any(|row| has(row, pair)), "{pair:?}");
    }
}

/// Returns the rendering of a value set by its number. Tests share it, because Helm is slow.
pub(super) fn rendering(renderer: &Renderer, helm: Tool, number: usize) -> &'static str {
    static CACHE: OnceLock<Vec<[OnceLock<String>; 2]>> = OnceLock::new();
    let sets = value_sets();
    let renderings = CACHE.get_or_init(|| sets.iter().map(|_| Default::default()).collect());
    let index = Tool::HELM.iter().position(|one| *one == helm).unwrap();
    renderings[number][index].get_or_init(|| render(renderer, helm, &sets[number]))
}

fn render(renderer: &Renderer, helm: Tool, set: &[String]) -> String {
    let options: Vec<&str> = set.iter().map(String::as_str).collect();
    renderer
        .render(helm, "gc", &options)
        .unwrap_or_else(|error| panic!("{helm:?} {options:?}: {error}"))
}

/// Returns the YAML documents of a rendering; their order is that of the Helm.
fn documents(text: &str) -> BTreeSet<&str> {
    text.split("---\n").map(str::trim).collect()
}

/// Returns the options of each value set.
pub(super) fn value_sets() -> &'static [Vec<String>] {
    static SETS: OnceLock<Vec<Vec<String>>> = OnceLock::new();
    SETS.get_or_init(make_value_sets)
}

fn make_value_sets() -> Vec<Vec<String>> {
    let mut sets: Vec<Vec<String>> = pairwise().iter().map(|row| options(row)).collect();
    sets.extend(RENDERINGS.map(|set| with_flags(set.iter().copied())));
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/original-values");
    let files = ["1.0.3", "1.1.0", "1.2.0"].map(|version| format!("{original}/{version}.yaml"));
    sets.extend(files.map(|file| vec!["--values".to_owned(), file]));
    let example = repository("examples/kubernetes/no-host-network/ipu-operator-values.yaml");
    assert!(Path::new(&example).exists(), "{example}");
    sets.push(vec!["--values".to_owned(), example]);
    sets
}

fn options(row: &[usize]) -> Vec<String> {
    let levels = row.iter().zip(FACTORS).map(|(level, factor)| factor[*level]);
    with_flags(levels.flat_map(|level| level.split(";;").filter(|option| !option.is_empty())))
}

fn with_flags<'a>(options: impl Iterator<Item = &'a str>) -> Vec<String> {
    options
        .flat_map(|option| ["--set-json".to_owned(), option.to_owned()])
        .collect()
}

fn all_pairs() -> BTreeSet<Pair> {
    let levels = FACTORS.iter().enumerate();
    let levels = levels.flat_map(|(factor, levels)| (0..levels.len()).map(move |level| (factor, level)));
    let levels: Vec<(usize, usize)> = levels.collect();
    let mut pairs = BTreeSet::new();
    for first in &levels {
        let others = levels.iter().filter(|second| second.0 > first.0);
        pairs.extend(others.map(|second| [*first, *second]));
    }
    pairs
}

fn has(row: &[usize], [first, second]: Pair) -> bool {
    row[first.0] == first.1 && row[second.0] == second.1
}

/// Returns rows of levels that have all pairs: each row begins with a missing pair, and gets the levels that
/// complete most missing pairs.
fn pairwise() -> Vec<Vec<usize>> {
    let mut missing = all_pairs();
    let mut rows = Vec::new();
    while let Some([first, second]) = missing.first().copied() {
        let mut row: Vec<Option<usize>> = vec![None; FACTORS.len()];
        row[first.0] = Some(first.1);
        row[second.0] = Some(second.1);
        for (factor, levels) in FACTORS.iter().enumerate() {
            let gain = |level: usize| {
                let is_known = |(other, chosen): (usize, usize)| row[other] == Some(chosen);
                let is_completed = |[a, b]: &&Pair| {
                    *a == (factor, level) && is_known(*b) || *b == (factor, level) && is_known(*a)
                };
                missing.iter().filter(is_completed).count()
            };
            if row[factor].is_none() {
                row[factor] = (0..levels.len()).max_by_key(|level| gain(*level));
            }
        }
        let row: Vec<usize> = row.into_iter().flatten().collect();
        missing.retain(|pair| !has(&row, *pair));
        rows.push(row);
    }
    rows
}
