//! Nodes: RDMA devices and clocks.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;

use super::super::facts::Facts;
use super::super::finding::{Checked, Finding, Fix, Rule};
use super::controllers::{self, has_label};
use super::{is_active, pods};

/// Prefix of the resources of RDMA device plugins.
const RDMA: &str = "rdma/";
/// Difference of two clocks from which it counts: more than the time of a request, and less than validity
/// checks of new certificates and Leases tolerate.
const MAX_SKEW: SignedDuration = SignedDuration::from_secs(10);
/// Age of a heartbeat from which its node counts as not ready; kubelet renews it every 10 seconds.
const LATE_HEARTBEAT: SignedDuration = SignedDuration::from_secs(40);

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "RdmaUnavailable",
        condition: "A node with the label of a V-IPU controller has an RDMA resource with nothing allocatable, or a Pod of \
                    a job requests one that no node has.",
        effect: "Workers that request the resource stay Pending.",
        remedy: "Check the RDMA device plugin of the node and its configuration.",
        check: rdma,
    },
    Rule {
        code: "ClockSkew",
        condition: "The clock of this host differs from that of the API server by more than ten seconds, or that of a node \
                    is ahead by more. A node whose clock is behind looks like one with a late heartbeat: not checked from \
                    40 seconds on.",
        effect: "New certificates and tokens count as not yet valid. Times of reports are wrong.",
        remedy: "Synchronize the clocks, such as by chrony.",
        check: clock_skew,
    },
];

fn allocatable(node: &Node, resource: &str) -> bool {
    let quantities = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    quantities
        .and_then(|quantities| quantities.get(resource))
        .is_some_and(|quantity| !matches!(quantity.0.as_str(), "" | "0"))
}

fn rdma_resources(node: &Node) -> BTreeSet<String> {
    let status = node.status.as_ref();
    let capacity = status
        .and_then(|status| status.capacity.as_ref())
        .into_iter()
        .flatten();
    let allocatable = status
        .and_then(|status| status.allocatable.as_ref())
        .into_iter()
        .flatten();
    let names = capacity.chain(allocatable).map(|(name, _)| name);
    names.filter(|name| name.starts_with(RDMA)).cloned().collect()
}

fn requested(pod: &Pod) -> BTreeSet<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    limits
        .flat_map(|limits| limits.keys())
        .filter(|name| name.starts_with(RDMA))
        .cloned()
        .collect()
}

fn rdma(facts: &Facts) -> Checked {
    let nodes = facts.nodes.get()?;
    // Other nodes may keep a resource of a removed plugin, with nothing allocatable.
    let labels = controllers::labels(facts)?;
    let mut findings = Vec::new();
    for node in nodes
        .iter()
        .filter(|node| labels.iter().any(|label| has_label(node, label)))
    {
        for resource in rdma_resources(node) {
            if !allocatable(node, &resource) {
                findings.push(Finding::new(
                    format!("Node {}", node.name_any()),
                    format!("{resource} has nothing allocatable"),
                    "more than 0",
                    Fix::inspect(format!("kubectl describe node {}", node.name_any())),
                ));
            }
        }
    }
    let requests: BTreeSet<String> = pods(facts)?.filter(is_active).flat_map(requested).collect();
    for resource in requests {
        if !nodes.iter().any(|node| rdma_resources(node).contains(&resource)) {
            findings.push(Finding::new(
                format!("resource {resource}"),
                "Pods of jobs request it, and no node has it",
                "allocatable on the nodes of the IPUs",
                Fix::inspect(
                    "kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.status.allocatable}{\"\\n\"}{end}'",
                ),
            ));
        }
    }
    Ok(findings)
}

fn clock_skew(facts: &Facts) -> Checked {
    let api_time = *facts.api_time.get()?;
    let mut findings = Vec::new();
    let mut compare = |object: String, time: Timestamp| {
        let skew = time.duration_since(api_time);
        if skew.abs() > MAX_SKEW {
            let (seconds, direction) = (
                skew.abs().as_secs(),
                if skew.is_negative() { "behind" } else { "ahead of" },
            );
            findings.push(Finding::new(
                object,
                format!("{seconds} s {direction} the API server"),
                format!("at most {} s", MAX_SKEW.as_secs()),
                Fix::run("chronyc makestep").with_note("Run it on that host, as root."),
            ));
        }
    };
    compare("this host".into(), facts.now);
    let mut late = None;
    for lease in facts.node_leases.get()? {
        let renewed = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.renew_time.as_ref())
            .map(|time| time.0);
        let Some(renewed) = renewed else { continue };
        let node = lease.name_any();
        let age = api_time.duration_since(renewed);
        if age.is_negative() {
            compare(format!("Node {node}"), renewed);
        } else if age > LATE_HEARTBEAT {
            late.get_or_insert(format!(
                "the last heartbeat of Node {node} is {} s old: it is down, or its clock is behind",
                age.as_secs()
            ));
        }
    }
    match late {
        Some(reason) if findings.is_empty() => Err(reason),
        _ => Ok(findings),
    }
}
