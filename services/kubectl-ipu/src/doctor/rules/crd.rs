//! The CRD.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::super::facts::Facts;
use super::super::finding::{Checked, Finding, Fix, Rule};
use super::bundle::{self, parse};

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

/// Returns the version in the annotation of the CRD.
pub(super) fn version_of(crd: &CustomResourceDefinition) -> Option<&str> {
    let annotations = crd.metadata.annotations.as_ref()?;
    annotations.get(VERSION).map(String::as_str)
}

/// Returns the command that applies the CRD of the bundle, unless CRD or operator are newer.
fn apply(crd: Option<&CustomResourceDefinition>, operator: Option<&str>) -> Fix {
    let versions = crd.and_then(version_of).into_iter().chain(operator);
    bundle::too_old(versions).unwrap_or_else(|| Fix::run(APPLY))
}

fn absent(facts: &Facts) -> Checked {
    // The version of an operator that the caller cannot read does not matter: the operator updates the CRD.
    let operator = facts.installation.get().ok();
    let operator = operator.and_then(|installation| installation.version.as_deref());
    Ok(match facts.crd.get()? {
        Some(_) => Vec::new(),
        None => vec![Finding::new(OBJECT, "absent", "installed", apply(None, operator))],
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
    let installed = version_of(crd);
    if installed
        .and_then(parse)
        .is_some_and(|installed| installed >= expected)
    {
        return Ok(Vec::new());
    }
    let actual = installed.map_or_else(
        || "without a version".into(),
        |version| format!("version {version}"),
    );
    let expected = format!("version {operator} or newer, that of the operator");
    let fix = apply(Some(crd), Some(&operator));
    Ok(vec![Finding::new(OBJECT, actual, expected, fix)])
}
