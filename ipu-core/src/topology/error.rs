//! Why something is not a topology.

use alloc::string::String;

use super::Topology;
use crate::ids::{AgentId, AllocationId, ClusterId, NameError};

/// Why something is not a [`Topology`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// No machine at all.
    #[error("a topology has at least one machine; give a preset such as pod16 or link domains such as 1x4")]
    NoMachines,
    /// More link domains than [`Topology::MAX_LINK_DOMAINS`].
    #[error(
        "a topology has at most {} link domains; use several controllers",
        Topology::MAX_LINK_DOMAINS
    )]
    TooManyLinkDomains,
    /// More machines in a link domain than there can be.
    #[error(
        "link domain {link_domain} of cluster {cluster} has {machines} machines; at most {} fit, so split it",
        Topology::LINK_DOMAIN_MACHINES
    )]
    TooManyMachines {
        /// The cluster.
        cluster: ClusterId,
        /// The link domain in its cluster.
        link_domain: u32,
        /// How many it has.
        machines: usize,
    },
    /// Two clusters of one id.
    #[error("cluster {cluster} is given twice; give each cluster an id of its own")]
    ClusterTwice {
        /// The id.
        cluster: ClusterId,
    },
    /// Two machines of one agent.
    #[error("agent {agent} is given twice; an agent is one machine, so give each its own id")]
    AgentTwice {
        /// The id.
        agent: AgentId,
    },
    /// Two allocations of one id.
    #[error("allocation {allocation} is given twice; give each allocation an id of its own")]
    AllocationTwice {
        /// The id.
        allocation: AllocationId,
    },
    /// An allocation without agents.
    #[error("allocation {allocation} has no agents; name at least one, or leave the allocation out")]
    EmptyAllocation {
        /// The id.
        allocation: AllocationId,
    },
    /// An allocation in a cluster that is not there.
    #[error("allocation {allocation} names cluster {cluster}, which is not there; name one of the clusters")]
    UnknownCluster {
        /// The allocation.
        allocation: AllocationId,
        /// What it names.
        cluster: ClusterId,
    },
    /// An allocation with an agent that its cluster does not have.
    #[error(
        "agent {agent} of allocation {allocation} is not in cluster {cluster}; an allocation stays in one cluster"
    )]
    ForeignAgent {
        /// The agent.
        agent: AgentId,
        /// The allocation.
        allocation: AllocationId,
        /// The cluster that the allocation is in.
        cluster: ClusterId,
    },
    /// A text that is neither a preset nor link domains.
    #[error(
        "{text:?} is not a topology: it is one of pod4, pod16, pod64, pod128, pod256, or link domains such as 2x16,1x4 \
         (two of 16 machines and one of 4), clusters apart by ';', each with an optional id before '='"
    )]
    Text {
        /// What was given.
        text: String,
    },
    /// An attribute of an IPU that does not parse, or contradicts another.
    #[error("attribute {attribute} of IPU {ipu} of agent {agent} is {value:?}: {rule}")]
    Attribute {
        /// The agent.
        agent: AgentId,
        /// The IPU's hardware id in its machine.
        ipu: u32,
        /// The name of the attribute.
        attribute: &'static str,
        /// Its value; empty if it is missing.
        value: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// Two machines at one place.
    #[error(
        "agents {one} and {other} both say that they are machine {machine} of link domain {link_domain} of cluster {cluster}"
    )]
    SamePlace {
        /// The first.
        one: AgentId,
        /// The second.
        other: AgentId,
        /// The cluster.
        cluster: ClusterId,
        /// The link domain in its cluster.
        link_domain: u32,
        /// The machine in its link domain.
        machine: usize,
    },
    /// An id that is not one.
    #[error(transparent)]
    Name(#[from] NameError),
}
