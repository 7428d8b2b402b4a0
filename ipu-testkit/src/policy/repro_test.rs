//! Reproduction of a failure as Rust code: a test that needs only `ipu-core` and the policy.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ipu_core::{Block, Impossible, IpuAddress, PlacementRequest, Topology};

use super::checks::{REPEATS, changes_ascending, changes_descending};
use super::property::{BrokenProperty, Reproduction};
use crate::strategies::InventoryChange;

/// Items of `ipu-core` that the code may name.
const CORE_ITEMS: [&str; 12] = [
    "Allocation",
    "Block",
    "Cluster",
    "Impossible",
    "Inventory",
    "IpuAddress",
    "IpuCount",
    "LinkDomain",
    "Placement",
    "PlacementRequest",
    "Topology",
    "place",
];

/// Returns the test that fails while `broken` does. `policy` is the expression that constructs the policy.
pub(super) fn reproduction(broken: &BrokenProperty, policy: &str) -> String {
    let mut body = String::from("    let count = |ipus: u32| IpuCount::try_from(ipus).unwrap();\n");
    push_line(
        &mut body,
        &format!("let topology = {};", topology(broken.reference.topology())),
    );
    match broken.reproduction {
        Reproduction::Rebuilt => {
            inventory(&mut body, "inventory", &broken.history);
            inventory(&mut body, "rebuilt", &changes_descending(&broken.reference));
        }
        _ => inventory(&mut body, "inventory", &changes_ascending(&broken.reference)),
    }
    push_line(&mut body, &format!("let request = {};", request(&broken.request)));
    push_line(&mut body, &format!("let policy = {policy};"));
    body.push('\n');
    push_line(&mut body, &format!("// {}.", sentence(&broken.detail)));
    assertion(&mut body, broken, policy);
    let used: Vec<&str> = CORE_ITEMS
        .into_iter()
        .filter(|name| contains_name(&body, name))
        .collect();
    format!(
        "#[test]\nfn {}() {{\n    use ipu_core::{{{}}};\n\n{body}}}\n",
        broken.property.test_name(),
        used.join(", ")
    )
}

/// Returns `text` on one line, capitalized.
fn sentence(text: &str) -> String {
    let text = text.replace('\n', " ");
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn push_line(body: &mut String, text: &str) {
    let _ = writeln!(body, "    {text}");
}

/// Returns whether `code` contains `name` as a word.
fn contains_name(code: &str, name: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    code.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .any(|line| {
            line.match_indices(name)
                .any(|(at, _)| !line[..at].ends_with(word) && !line[at + name.len()..].starts_with(word))
        })
}

fn inventory(body: &mut String, name: &str, changes: &[InventoryChange]) {
    let mutable = if changes.is_empty() { "" } else { "mut " };
    push_line(body, &format!("let {mutable}{name} = Inventory::new(&topology);"));
    for change in changes {
        let call = match change {
            InventoryChange::Occupy(holder, block) => {
                format!("occupy(\"{holder}\".parse().unwrap(), {})", block_code(block))
            }
            InventoryChange::Vacate(holder) => format!("vacate(&\"{holder}\".parse().unwrap())"),
            InventoryChange::Cordon(owner, ipus) => {
                format!("cordon(&\"{owner}\".parse().unwrap(), {})", ipus_code(ipus))
            }
            InventoryChange::Lift(owner, ipus) => {
                format!("uncordon(&\"{owner}\".parse().unwrap(), {})", ipus_code(ipus))
            }
        };
        push_line(body, &format!("{name}.{call}.unwrap();"));
    }
}

fn block_code(block: &Block) -> String {
    let first = block.first();
    match block.size() {
        Some(size) if size.get() <= 64 => {
            format!(
                "Block::within({}, {}, count({size})).unwrap()",
                first.link_domain, first.ipu
            )
        }
        Some(_) => {
            let domains: Vec<u32> = block.masks().map(|(domain, _)| domain).collect();
            format!("Block::whole({domains:?}).unwrap()")
        }
        None => format!(
            "Block::of_ipus({}).unwrap()",
            ipus_code(&block.addresses().collect())
        ),
    }
}

fn ipus_code(ipus: &BTreeSet<IpuAddress>) -> String {
    let ipus: Vec<String> = ipus
        .iter()
        .map(|at| {
            format!(
                "IpuAddress {{ link_domain: {}, ipu: {} }}",
                at.link_domain, at.ipu
            )
        })
        .collect();
    format!("[{}]", ipus.join(", "))
}

fn request(request: &PlacementRequest) -> String {
    let of_size = format!("PlacementRequest::of_size(count({}))", request.size);
    match &request.allocation {
        Some(id) => format!("{of_size}.in_allocation(Some(\"{id}\".parse().unwrap()))"),
        None => of_size,
    }
}

/// Returns the shortest code that constructs this topology: its text form, the text form with other
/// allocations, or every machine.
fn topology(topology: &Topology) -> String {
    let text = topology.to_string();
    let parsed: Option<Topology> = text.parse().ok();
    if parsed.as_ref() == Some(topology) {
        return format!("\"{text}\".parse::<Topology>().unwrap()");
    }
    let clusters = if parsed.is_some_and(|parsed| parsed.clusters() == topology.clusters()) {
        format!("\"{text}\".parse::<Topology>().unwrap().clusters().to_vec()")
    } else {
        clusters(topology)
    };
    let default = Topology::new(topology.clusters().to_vec(), None);
    let allocations = if default.as_ref() == Ok(topology) {
        "None".to_owned()
    } else {
        format!("Some(vec![{}])", allocations(topology))
    };
    format!("Topology::new({clusters}, {allocations}).unwrap()")
}

fn clusters(topology: &Topology) -> String {
    let mut clusters = Vec::new();
    for cluster in topology.clusters() {
        let domains = cluster.link_domains.iter().map(|domain| {
            let machines: Vec<String> = domain
                .machines
                .iter()
                .map(|agent| match agent {
                    Some(agent) => format!("Some(\"{agent}\".parse().unwrap())"),
                    None => "None".to_owned(),
                })
                .collect();
            format!("LinkDomain {{ machines: vec![{}] }}", machines.join(", "))
        });
        clusters.push(format!(
            "Cluster {{ id: \"{}\".parse().unwrap(), link_domains: vec![{}] }}",
            cluster.id,
            domains.collect::<Vec<_>>().join(", ")
        ));
    }
    format!("vec![{}]", clusters.join(", "))
}

fn allocations(topology: &Topology) -> String {
    let allocations = topology.allocations().iter().map(|allocation| {
        let agents: Vec<&str> = allocation.agents.iter().map(ipu_core::AgentId::as_str).collect();
        format!(
            "Allocation {{ id: \"{}\".parse().unwrap(), cluster: \"{}\".parse().unwrap(), \
             agents: {agents:?}.into_iter().map(|agent| agent.parse().unwrap()).collect() }}",
            allocation.id, allocation.cluster
        )
    });
    allocations.collect::<Vec<_>>().join(", ")
}

fn assertion(body: &mut String, broken: &BrokenProperty, policy: &str) {
    push_line(body, "let placement = place(&inventory, &request, &policy);");
    match &broken.reproduction {
        Reproduction::Placing => push_line(body, "let _ = placement;"),
        Reproduction::Illegal => push_line(
            body,
            "assert!(!matches!(placement, Placement::Impossible(Impossible::Illegal { .. })), \"{placement:?}\");",
        ),
        Reproduction::NoFit => {
            push_line(
                body,
                "assert!(matches!(placement, Placement::Fits(_)), \"{placement:?}\");",
            );
        }
        Reproduction::Not(reason) => {
            let pattern = format!("Placement::Impossible(Impossible::{} {{ .. }})", variant(reason));
            push_line(
                body,
                &format!("assert!(matches!(placement, {pattern}), \"{{placement:?}}\");"),
            );
        }
        Reproduction::Repeated => {
            push_line(body, &format!("for _ in 0..{REPEATS} {{"));
            push_line(
                body,
                "    assert_eq!(place(&inventory, &request, &policy), placement);",
            );
            push_line(body, "}");
        }
        Reproduction::AfterOthers => {
            push_line(
                body,
                "let _ = place(&Inventory::new(&topology), &request, &policy);",
            );
            for size in [1, 64] {
                let mut other = broken.request.clone();
                other.size = size.try_into().expect("1 and 64 are IPU counts");
                push_line(
                    body,
                    &format!("let _ = place(&inventory, &{}, &policy);", request(&other)),
                );
            }
            push_line(
                body,
                "assert_eq!(place(&inventory, &request, &policy), placement);",
            );
            push_line(
                body,
                &format!("assert_eq!(place(&inventory, &request, &{policy}), placement);"),
            );
        }
        Reproduction::Rebuilt => {
            push_line(body, "assert_eq!(place(&rebuilt, &request, &policy), placement);")
        }
        Reproduction::Count(expected) => count_placements(body, *expected),
        Reproduction::CostlyBlock(chosen) => {
            push_line(
                body,
                &format!("assert_ne!(placement, Placement::Fits({}));", block_code(chosen)),
            );
        }
    }
}

fn count_placements(body: &mut String, expected: u32) {
    for text in [
        "drop(placement);",
        "let (mut inventory, mut placed) = (inventory, 0);",
        "while let Placement::Fits(block) = place(&inventory, &request, &policy) {",
        "    inventory.occupy(format!(\"placed-{placed}\").parse().unwrap(), block).unwrap();",
        "    placed += 1;",
        "}",
    ] {
        push_line(body, text);
    }
    push_line(body, &format!("assert_eq!(placed, {expected});"));
}

const fn variant(reason: &Impossible) -> &'static str {
    match reason {
        Impossible::UnknownAllocation { .. } => "UnknownAllocation",
        Impossible::TooLarge { .. } => "TooLarge",
        Impossible::NotEnoughFree { .. } => "NotEnoughFree",
        Impossible::Fragmented { .. } => "Fragmented",
        Impossible::Cordoned { .. } => "Cordoned",
        Impossible::Declined { .. } => "Declined",
        _ => "Illegal",
    }
}
