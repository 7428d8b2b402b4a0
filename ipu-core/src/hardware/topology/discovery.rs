//! Topology discovery from the attributes that a controller lists for each agent's IPUs.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Ordering;

use super::{Allocation, Cluster, IpuAddress, LinkDomain, Topology, TopologyError};
use crate::ids::{AgentId, AllocationId, ClusterId};

/// The attributes of each IPU of one agent, by hardware id in the machine (0 to 3), as a controller lists
/// them.
pub type AgentAttributes = BTreeMap<u32, BTreeMap<String, String>>;

/// The result of [`Topology::from_agents`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiscoveredTopology {
    /// The hardware.
    pub topology: Topology,
    /// IPUs that the controller does not report healthy, or does not list although it lists their machine.
    pub unhealthy: Vec<IpuAddress>,
}

/// The machine of one agent according to its attributes.
struct Machine {
    cluster: ClusterId,
    link_domain: u32,
    slot: usize,
    allocations: BTreeSet<AllocationId>,
    /// Bit i: IPU i of the machine is listed and healthy.
    healthy: u8,
}

impl Topology {
    /// Builds the topology of the agents that a controller lists.
    ///
    /// Reads the attributes `cluster` (an id), `linkDomain` (its number in the cluster), `ipu` (its number in
    /// the link domain), `health` (`ok`, else unhealthy) and `allocation` (ids separated by `,`).
    ///
    /// *Assumptions*. No public document specifies the attributes that a controller lists; these are the ones
    /// that the simulator of this project lists. If no IPU has `linkDomain` and `ipu`, agents are assigned in
    /// natural order of their ids (`a2` before `a10`), 16 machines per link domain, all in one cluster (the
    /// one that `cluster` names, else `cl1`). Without `allocation` each cluster has one allocation of its own
    /// id.
    ///
    /// # Errors
    ///
    /// [`TopologyError`] if an attribute does not parse or contradicts another, or there are no agents.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    ///
    /// use ipu_core::AgentId;
    /// use ipu_core::hardware::Topology;
    ///
    /// // Two agents with four IPUs each, one of which is broken.
    /// let health = |state: &str| BTreeMap::from([("health".to_owned(), state.to_owned())]);
    /// let healthy: BTreeMap<u32, _> = (0..4).map(|ipu| (ipu, health("ok"))).collect();
    /// let mut broken = healthy.clone();
    /// broken.insert(2, health("error"));
    /// let agents = [(AgentId::new("a1")?, healthy), (AgentId::new("a2")?, broken)];
    /// let found = Topology::from_agents(&BTreeMap::from(agents))?;
    /// assert_eq!((found.topology.ipus(), found.unhealthy[0].ipu), (8, 6));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_agents(
        agents: &BTreeMap<AgentId, AgentAttributes>,
    ) -> Result<DiscoveredTopology, TopologyError> {
        let placed = agents
            .values()
            .flat_map(BTreeMap::values)
            .any(|attributes| attributes.contains_key("linkDomain") || attributes.contains_key("ipu"));
        let mut names: Vec<&AgentId> = agents.keys().collect();
        names.sort_by(|a, b| compare_natural(a.as_str(), b.as_str()));
        let mut machines = Vec::new();
        for (index, agent) in names.into_iter().enumerate() {
            let attributes = &agents[agent];
            let assumed = (!placed).then_some(index);
            machines.push((agent.clone(), machine(agent, attributes, assumed)?));
        }
        assemble(machines)
    }
}

fn machine(
    agent: &AgentId,
    ipus: &AgentAttributes,
    assumed: Option<usize>,
) -> Result<Machine, TopologyError> {
    let reader = AttributeReader { agent, ipus };
    let cluster = ClusterId::new(reader.common_value("cluster")?.unwrap_or("cl1"))?;
    let mut allocations = BTreeSet::new();
    for id in reader
        .common_value("allocation")?
        .unwrap_or("")
        .split(',')
        .map(str::trim)
        .filter(|id| !id.is_empty())
    {
        allocations.insert(AllocationId::new(id)?);
    }
    let mut healthy = 0;
    let mut found: Option<(u32, usize)> = assumed.map(|index| {
        (
            u32::try_from(index / Topology::LINK_DOMAIN_MACHINES).unwrap_or(u32::MAX),
            index % Topology::LINK_DOMAIN_MACHINES,
        )
    });
    for (hardware, attributes) in ipus {
        let invalid = |attribute, rule| TopologyError::Attribute {
            agent: agent.clone(),
            ipu: *hardware,
            attribute,
            value: attributes.get(attribute).cloned().unwrap_or_default(),
            rule,
        };
        if *hardware >= Topology::MACHINE_IPUS {
            return Err(invalid(
                "ipu",
                "a machine has 4 IPUs, with the hardware ids 0 to 3",
            ));
        }
        let mut bit = *hardware;
        if assumed.is_none() {
            let number = |name, max: u32, rule| -> Result<u32, TopologyError> {
                let value = attributes.get(name).and_then(|value| value.trim().parse().ok());
                value
                    .filter(|value| *value <= max)
                    .ok_or_else(|| invalid(name, rule))
            };
            let max = u32::try_from(Topology::MAX_LINK_DOMAINS).unwrap_or(u32::MAX) - 1;
            let domain = number(
                "linkDomain",
                max,
                "every IPU has the number of its link domain, from 0",
            )?;
            let ipu = number("ipu", 63, "every IPU has its number in the link domain, 0 to 63")?;
            let place = (domain, (ipu / Topology::MACHINE_IPUS) as usize);
            if *found.get_or_insert(place) != place {
                return Err(invalid(
                    "ipu",
                    "the IPUs of a machine are four consecutive ones of one link domain",
                ));
            }
            bit = ipu % Topology::MACHINE_IPUS;
        }
        if attributes
            .get("health")
            .is_none_or(|health| health.eq_ignore_ascii_case("ok"))
        {
            healthy |= 1 << bit;
        }
    }
    let Some((link_domain, slot)) = found else {
        return Err(TopologyError::Attribute {
            agent: agent.clone(),
            ipu: 0,
            attribute: "ipu",
            value: String::new(),
            rule: "an agent lists at least one IPU with its number in the link domain",
        });
    };
    Ok(Machine {
        cluster,
        link_domain,
        slot,
        allocations,
        healthy,
    })
}

/// Reads attributes that all IPUs of an agent share.
struct AttributeReader<'a> {
    agent: &'a AgentId,
    ipus: &'a AgentAttributes,
}

impl<'a> AttributeReader<'a> {
    fn common_value(&self, attribute: &'static str) -> Result<Option<&'a str>, TopologyError> {
        let mut found: Option<&str> = None;
        for (ipu, attributes) in self.ipus {
            let Some(value) = attributes.get(attribute) else {
                continue;
            };
            if *found.get_or_insert(value) != value {
                return Err(TopologyError::Attribute {
                    agent: self.agent.clone(),
                    ipu: *ipu,
                    attribute,
                    value: value.clone(),
                    rule: "all IPUs of a machine have the same",
                });
            }
        }
        Ok(found)
    }
}

fn assemble(machines: Vec<(AgentId, Machine)>) -> Result<DiscoveredTopology, TopologyError> {
    let mut clusters: BTreeMap<ClusterId, Vec<LinkDomain>> = BTreeMap::new();
    let mut allocations: BTreeMap<AllocationId, Allocation> = BTreeMap::new();
    let mut created = 0;
    for (agent, machine) in &machines {
        let domains = clusters.entry(machine.cluster.clone()).or_default();
        let index = machine.link_domain as usize;
        if domains.len() <= index {
            // Checked before the allocation: each of many clusters may begin with an empty link domain 4095.
            created += index + 1 - domains.len();
            if created > Topology::MAX_LINK_DOMAINS {
                return Err(TopologyError::TooManyLinkDomains);
            }
            domains.resize_with(index + 1, LinkDomain::default);
        }
        let slots = &mut domains[index].machines;
        if slots.len() <= machine.slot {
            slots.resize(machine.slot + 1, None);
        }
        if let Some(one) = slots[machine.slot].replace(agent.clone()) {
            return Err(TopologyError::DuplicatePosition {
                one,
                other: agent.clone(),
                cluster: machine.cluster.clone(),
                link_domain: machine.link_domain,
                machine: machine.slot,
            });
        }
        for id in &machine.allocations {
            let allocation = allocations.entry(id.clone()).or_insert_with(|| Allocation {
                id: id.clone(),
                cluster: machine.cluster.clone(),
                agents: BTreeSet::new(),
            });
            allocation.agents.insert(agent.clone());
        }
    }
    let clusters = clusters
        .into_iter()
        .map(|(id, link_domains)| Cluster { id, link_domains })
        .collect();
    let allocations = (!allocations.is_empty()).then(|| allocations.into_values().collect());
    let topology = Topology::new(clusters, allocations)?;
    let mut unhealthy: Vec<IpuAddress> = machines
        .iter()
        .filter_map(|(agent, machine)| Some((topology.agent_ipus(agent)?, machine.healthy)))
        .flat_map(|(ipus, healthy)| {
            ipus.into_iter()
                .filter(move |at| healthy >> (at.ipu % 4) & 1 == 0)
        })
        .collect();
    unhealthy.sort_unstable();
    Ok(DiscoveredTopology { topology, unhealthy })
}

/// Compares names in natural order: runs of digits by value, all others by character.
fn compare_natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (x, y) = (split(left), split(right));
        let (Some((x, rest_x)), Some((y, rest_y))) = (x, y) else {
            return left.len().cmp(&right.len()).then_with(|| a.cmp(b));
        };
        let digits = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let order = if digits(x) && digits(y) {
            let (x, y) = (x.trim_start_matches('0'), y.trim_start_matches('0'));
            x.len().cmp(&y.len()).then_with(|| x.cmp(y))
        } else {
            x.cmp(y)
        };
        if order != Ordering::Equal {
            return order;
        }
        (left, right) = (rest_x, rest_y);
    }
}

/// Splits off the leading run of digits or of other characters; none at the end.
fn split(text: &str) -> Option<(&str, &str)> {
    let digit = text.chars().next()?.is_ascii_digit();
    let end = text
        .find(|c: char| c.is_ascii_digit() != digit)
        .unwrap_or(text.len());
    Some(text.split_at(end))
}
