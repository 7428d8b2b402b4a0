//! The CRD.

use kube::ResourceExt as _;
use semver::Version;

use super::super::facts::Facts;
use super::super::finding::{Checked, Finding, Rule};

const OBJECT: &str = "CustomResourceDefinition ipujobs.graphcore.ai";
const APPLY: &str = "kubectl apply --server-side --force-conflicts -f deploy/crd/ipujobs.graphcore.ai.yaml";
const VERSION: &str = "graphcore.ai/crd-version";

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "CrdAbsent",
        condition: "The cluster has no CRD of IPUJobs.",
        effect: "No job can be submitted, and the operator is not ready.",
        remedy: "The operator creates the CRD, unless `--maintain-crd=false` is set. Apply it, and read the log of \
                 the operator for the reason.",
        check: absent,
    },
    Rule {
        code: "CrdOlder",
        condition: "The CRD is older than the operator, or that of Graphcore's charts.",
        effect: "The API server drops fields of jobs that the operator supports.",
        remedy: "Apply the CRD of the operator's version.",
        check: older,
    },
];

fn absent(facts: &Facts) -> Checked {
    Ok(match facts.crd.get()? {
        Some(_) => Vec::new(),
        None => vec![Finding::new(OBJECT, "absent", "installed", APPLY)],
    })
}

fn older(facts: &Facts) -> Checked {
    let Some(crd) = facts.crd.get()? else {
        return Err("there is no CRD".into());
    };
    let operator = facts.installation.get()?.version.clone().unwrap_or_default();
    let Some(expected) = parse(&operator) else {
        return Err(format!(
            "the operator's version {operator:?} is not a version such as 1.2.3"
        ));
    };
    let installed = crd.annotations().get(VERSION);
    let is_older = installed
        .and_then(|version| parse(version))
        .is_none_or(|installed| installed < expected);
    if !is_older {
        return Ok(Vec::new());
    }
    let actual = installed.map_or_else(
        || "without a version".into(),
        |version| format!("version {version}"),
    );
    let expected = format!("version {operator} or newer, that of the operator");
    Ok(vec![Finding::new(OBJECT, actual, expected, APPLY)])
}

/// Parses `1.2.3` or `v1.2.3`, also with a pre-release.
fn parse(text: &str) -> Option<Version> {
    text.strip_prefix('v').unwrap_or(text).parse().ok()
}
