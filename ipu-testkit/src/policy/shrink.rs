//! Structural shrinking of a failing case: without a cluster, a change or an allocation.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::{
    AgentId, Allocation, Block, Cluster, Inventory, IpuAddress, IpuCount, PlacementRequest, Topology,
};

use super::checks::{PolicyCase, PropertyChecker, changes_ascending};
use super::property::{BrokenProperty, PolicyProperty};
use crate::reference_inventory::ReferenceInventory;
use crate::strategies::InventoryChange;

/// Maximum number of smaller cases.
const MAX_TRIES: usize = 400;

/// Case that can be run again.
#[derive(Clone, Debug)]
struct Case {
    topology: Topology,
    changes: Vec<InventoryChange>,
    request: PlacementRequest,
}

/// Returns the smallest case found that violates the same property.
pub(super) fn smallest(checker: &PropertyChecker<'_>, mut broken: BrokenProperty) -> BrokenProperty {
    let mut tries = MAX_TRIES;
    'smaller: loop {
        let case = Case::of(&broken);
        for candidate in case.smaller() {
            if tries == 0 {
                return broken;
            }
            tries -= 1;
            if let Some(found) = candidate.run(checker)
                && found.property == broken.property
                && Case::of(&found).weight() < case.weight()
            {
                broken = found;
                continue 'smaller;
            }
        }
        return broken;
    }
}

impl Case {
    fn of(broken: &BrokenProperty) -> Self {
        Self {
            topology: broken.reference.topology().clone(),
            changes: if broken.property == PolicyProperty::IgnoresHistory {
                broken.history.clone()
            } else {
                changes_ascending(&broken.reference)
            },
            request: broken.request.clone(),
        }
    }

    fn run(&self, checker: &PropertyChecker<'_>) -> Option<BrokenProperty> {
        let mut reference = ReferenceInventory::new(&self.topology);
        let mut inventory = Inventory::new(&self.topology);
        let mut history = self.changes.clone();
        history.retain(|change| change.apply(&mut reference, &mut inventory));
        let case = PolicyCase {
            reference: &reference,
            inventory: &inventory,
            history: &history,
            request: &self.request,
        };
        checker.check_case(case).err().map(|broken| *broken)
    }

    /// Returns the size of the case for a reader.
    fn weight(&self) -> usize {
        let clusters = self.topology.clusters();
        let domains = clusters.iter().flat_map(|cluster| &cluster.link_domains);
        let slots = domains.clone().flat_map(|domain| &domain.machines);
        // The text form has no gaps.
        let slots: usize = slots.map(|agent| if agent.is_some() { 1 } else { 4 }).sum();
        let named = named_allocations(&self.topology).map_or(0, |all| {
            1 + all
                .iter()
                .map(|allocation| 8 + allocation.agents.len())
                .sum::<usize>()
        });
        let ipus = |change: &InventoryChange| match change {
            InventoryChange::Occupy(_, block) if block.size().is_none() => block.ipus() as usize,
            InventoryChange::Cordon(_, ipus) | InventoryChange::Lift(_, ipus) => ipus.len(),
            _ => 1,
        };
        let changes: usize = self.changes.iter().map(|change| 4 + ipus(change)).sum();
        let requested = self.request.size.order() as usize + usize::from(self.request.allocation.is_some());
        8 * (clusters.len() + domains.count()) + slots + named + changes + requested
    }

    fn smaller(&self) -> Vec<Self> {
        let mut found: Vec<Self> = shapes(&self.topology)
            .into_iter()
            .filter_map(|shape| self.on(&shape))
            .collect();
        if let Some(all) = named_allocations(&self.topology) {
            let clusters = self.topology.clusters().to_vec();
            let fewer = (0..all.len()).map(|without| {
                let mut fewer = all.to_vec();
                fewer.remove(without);
                Some(fewer)
            });
            let topologies = std::iter::once(None).chain(fewer);
            found.extend(topologies.filter_map(|allocations| {
                let topology = Topology::new(clusters.clone(), allocations).ok()?;
                Some(Self {
                    topology,
                    ..self.clone()
                })
            }));
        }
        found.extend((0..self.changes.len()).map(|without| {
            let mut fewer = self.clone();
            fewer.changes.remove(without);
            fewer
        }));
        for (number, change) in self.changes.iter().enumerate() {
            let InventoryChange::Cordon(owner, ipus) = change else {
                continue;
            };
            for at in ipus.iter().filter(|_| ipus.len() > 1) {
                let mut fewer = self.clone();
                let without = ipus.iter().copied().filter(|other| other != at);
                fewer.changes[number] = InventoryChange::Cordon(owner.clone(), without.collect());
                found.push(fewer);
            }
        }
        found.extend(self.smaller_requests());
        found
    }

    fn smaller_requests(&self) -> Vec<Self> {
        let any = PlacementRequest::of_size(self.request.size);
        let half = self
            .request
            .size
            .order()
            .checked_sub(1)
            .and_then(IpuCount::from_order);
        let half =
            half.map(|size| PlacementRequest::of_size(size).in_allocation(self.request.allocation.clone()));
        let requests = [Some(any), half].into_iter().flatten();
        requests
            .filter(|request| *request != self.request)
            .map(|request| Self {
                request,
                ..self.clone()
            })
            .collect()
    }

    /// Returns the case on other hardware, without IPUs that do not exist there.
    fn on(&self, shape: &TopologyShape) -> Option<Self> {
        let topology = shape.topology(&self.topology)?;
        let new_indexes = shape.new_indexes();
        let map = |ipus: &mut dyn Iterator<Item = IpuAddress>| -> BTreeSet<IpuAddress> {
            let mapped = ipus.filter_map(|at| {
                let link_domain = *new_indexes.get(&at.link_domain)?;
                Some(IpuAddress { link_domain, ..at })
            });
            mapped.filter(|at| topology.contains(*at)).collect()
        };
        let changes = self.changes.iter().filter_map(|change| {
            Some(match change {
                InventoryChange::Occupy(holder, block) => {
                    let block = Block::from_ipus(map(&mut block.addresses())).ok()?;
                    InventoryChange::Occupy(holder.clone(), block)
                }
                InventoryChange::Vacate(holder) => InventoryChange::Vacate(holder.clone()),
                InventoryChange::Cordon(owner, ipus) => {
                    InventoryChange::Cordon(owner.clone(), not_empty(map(&mut ipus.iter().copied()))?)
                }
                InventoryChange::Lift(owner, ipus) => {
                    InventoryChange::Lift(owner.clone(), not_empty(map(&mut ipus.iter().copied()))?)
                }
            })
        });
        Some(Self {
            changes: changes.collect(),
            request: self.request.clone(),
            topology,
        })
    }
}

fn not_empty(ipus: BTreeSet<IpuAddress>) -> Option<BTreeSet<IpuAddress>> {
    (!ipus.is_empty()).then_some(ipus)
}

/// Returns the allocations, unless they are the default ones of the clusters.
fn named_allocations(topology: &Topology) -> Option<&[Allocation]> {
    let default = Topology::new(topology.clusters().to_vec(), None);
    (default.as_ref() != Ok(topology)).then(|| topology.allocations())
}

/// Clusters of link domains: the original link domain of each, and the contents of its slots.
#[derive(Clone, Debug)]
struct TopologyShape(Vec<Vec<(u32, Vec<DomainSlot>)>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum DomainSlot {
    Empty,
    Kept(AgentId),
    New,
}

impl TopologyShape {
    fn of(topology: &Topology) -> Self {
        let mut number = 0..;
        let clusters = topology.clusters().iter().map(|cluster| {
            let domains = cluster.link_domains.iter().map(|domain| {
                let slots = domain
                    .machines
                    .iter()
                    .map(|agent| agent.clone().map_or(DomainSlot::Empty, DomainSlot::Kept));
                (number.next().unwrap_or(u32::MAX), slots.collect())
            });
            domains.collect()
        });
        Self(clusters.collect())
    }

    /// Returns the new index of each link domain.
    fn new_indexes(&self) -> BTreeMap<u32, u32> {
        self.0.iter().flatten().map(|(was, _)| *was).zip(0..).collect()
    }

    /// Returns the topology of this shape with the ids of the text form, and those allocations of `old` that
    /// still exist.
    fn topology(&self, old: &Topology) -> Option<Topology> {
        let mut renamed = BTreeMap::new();
        let (mut agents, mut clusters) = (0, Vec::new());
        for (number, domains) in (1..).zip(&self.0) {
            let mut cluster = Cluster {
                id: format!("cl{number}").parse().ok()?,
                link_domains: Vec::new(),
            };
            for (_, slots) in domains {
                let mut domain = ipu_core::LinkDomain::default();
                for slot in slots {
                    let agent = (*slot != DomainSlot::Empty).then(|| {
                        agents += 1;
                        AgentId::new(format!("a{agents}"))
                    });
                    let agent = agent.transpose().ok()?;
                    if let (DomainSlot::Kept(was), Some(agent)) = (slot, &agent) {
                        renamed.insert(was.clone(), (agent.clone(), cluster.id.clone()));
                    }
                    domain.machines.push(agent);
                }
                cluster.link_domains.push(domain);
            }
            clusters.push(cluster);
        }
        let allocations = named_allocations(old).map(|all| {
            let kept = all.iter().filter_map(|allocation| {
                let agents = allocation.agents.iter().filter_map(|agent| renamed.get(agent));
                let (_, cluster) = agents.clone().next()?;
                Some(Allocation {
                    id: allocation.id.clone(),
                    cluster: cluster.clone(),
                    agents: agents.map(|(agent, _)| agent.clone()).collect(),
                })
            });
            kept.collect()
        });
        Topology::new(clusters, allocations).ok()
    }
}

/// Returns smaller hardware: without a cluster, without a link domain, with half of one, or with its gaps
/// filled.
fn shapes(topology: &Topology) -> Vec<TopologyShape> {
    let all = TopologyShape::of(topology);
    let mut found = Vec::new();
    for (place, cluster) in all.0.iter().enumerate() {
        let mut without = all.clone();
        without.0.remove(place);
        found.push(without);
        for (number, (_, slots)) in cluster.iter().enumerate() {
            let mut without = all.clone();
            without.0[place].remove(number);
            found.push(without);
            if slots.len() > 1 {
                let mut half = all.clone();
                half.0[place][number].1.truncate(slots.len() / 2);
                found.push(half);
            }
            if slots.contains(&DomainSlot::Empty) {
                let mut full = all.clone();
                for slot in &mut full.0[place][number].1 {
                    if *slot == DomainSlot::Empty {
                        *slot = DomainSlot::New;
                    }
                }
                found.push(full);
            }
        }
    }
    found
}
