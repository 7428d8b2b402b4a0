//! Errors of topologies.

use alloc::string::String;

use super::Topology;
use crate::ids::{AgentId, AllocationId, ClusterId, NameError};

/// The reason that something is not a [`Topology`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// No machine.
    #[error("a topology has at least one machine; give a preset such as pod16 or link domains such as 1x4")]
    NoMachines,
    /// More link domains than [`Topology::MAX_LINK_DOMAINS`].
    #[error(
        "a topology has at most {} link domains; use several controllers",
        Topology::MAX_LINK_DOMAINS
    )]
    TooManyLinkDomains,
    /// Too many machines in a link domain.
    #[error(
        "link domain {link_domain} of cluster {cluster} has {machines} machines; at most {} fit, so split it",
        Topology::LINK_DOMAIN_MACHINES
    )]
    TooManyMachines {
        /// The cluster.
        cluster: ClusterId,
        /// The link domain in its cluster.
        link_domain: u32,
        /// Number of its machines.
        machines: usize,
    },
    /// Two clusters with the same id.
    #[error("cluster {cluster} is given twice; give each cluster an id of its own")]
    DuplicateCluster {
        /// The id.
        cluster: ClusterId,
    },
    /// Two machines of the same agent.
    #[error("agent {agent} is given twice; an agent is one machine, so give each its own id")]
    DuplicateAgent {
        /// The id.
        agent: AgentId,
    },
    /// Two allocations with the same id.
    #[error("allocation {allocation} is given twice; give each allocation an id of its own")]
    DuplicateAllocation {
        /// The id.
        allocation: AllocationId,
    },
    /// An allocation without agents.
    #[error("allocation {allocation} has no agents; name at least one, or leave the allocation out")]
    EmptyAllocation {
        /// The id.
        allocation: AllocationId,
    },
    /// An allocation in a cluster that does not exist.
    #[error(
        "allocation {allocation} names cluster {cluster}, which does not exist; name one of the clusters"
    )]
    UnknownCluster {
        /// The allocation.
        allocation: AllocationId,
        /// The cluster that it names.
        cluster: ClusterId,
    },
    /// An allocation with an agent that its cluster does not have.
    #[error(
        "agent {agent} of allocation {allocation} is not in cluster {cluster}; an allocation is within one cluster"
    )]
    ForeignAgent {
        /// The agent.
        agent: AgentId,
        /// The allocation.
        allocation: AllocationId,
        /// The cluster of the allocation.
        cluster: ClusterId,
    },
    /// A text that is neither a preset nor link domains.
    #[error(
        "{text:?} is not a topology: it is one of pod4, pod16, pod64, pod128, pod256, or link domains such as 2x16,1x4 \
         (two of 16 machines and one of 4), clusters separated by ';', each with an optional id before '='"
    )]
    Text {
        /// The given text.
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
        /// The broken rule.
        rule: &'static str,
    },
    /// Two machines at the same position.
    #[error(
        "agents {one} and {other} are both listed as machine {machine} of link domain {link_domain} of cluster {cluster}"
    )]
    DuplicatePosition {
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
    /// An invalid id.
    #[error(transparent)]
    Name(#[from] NameError),
}
