//! Topologies as text: presets, and link domains by count and size.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use super::{Cluster, LinkDomain, Topology, TopologyError};
use crate::ids::{AgentId, ClusterId};

/// The IPU-POD presets: one cluster of link domains with these numbers of machines.
const PRESETS: [(&str, &[usize]); 5] = [
    ("pod4", &[1]),
    ("pod16", &[4]),
    ("pod64", &[16]),
    ("pod128", &[16; 2]),
    ("pod256", &[16; 4]),
];

impl Topology {
    /// One machine: 4 IPUs.
    #[must_use]
    pub fn pod4() -> Self {
        Self::one_cluster(&[1])
    }

    /// Four machines in one link domain: 16 IPUs.
    #[must_use]
    pub fn pod16() -> Self {
        Self::one_cluster(&[4])
    }

    /// One full link domain: 16 machines, 64 IPUs.
    #[must_use]
    pub fn pod64() -> Self {
        Self::one_cluster(&[16])
    }

    /// Two full link domains: 32 machines, 128 IPUs.
    #[must_use]
    pub fn pod128() -> Self {
        Self::one_cluster(&[16; 2])
    }

    /// Four full link domains: 64 machines, 256 IPUs.
    #[must_use]
    pub fn pod256() -> Self {
        Self::one_cluster(&[16; 4])
    }

    /// Returns the topology with only its first `machines` machines, such as a rack that is half full. Given
    /// allocations are dropped: each cluster gets one of its own id again.
    ///
    /// # Errors
    ///
    /// [`TopologyError::NoMachines`] if no machine is left.
    ///
    /// ```
    /// use ipu_core::hardware::Topology;
    ///
    /// assert_eq!(Topology::pod64().with_first_machines(8)?.ipus(), 32);
    /// assert_eq!(Topology::pod64().with_first_machines(99)?, Topology::pod64());
    /// # Ok::<(), ipu_core::hardware::TopologyError>(())
    /// ```
    pub fn with_first_machines(&self, machines: u32) -> Result<Self, TopologyError> {
        let mut places: Vec<_> = self.parts.machines.values().collect();
        places.sort_unstable();
        places.truncate(machines as usize);
        let (domain, slot) = places.last().ok_or(TopologyError::NoMachines)?;
        let (cluster, number) = self.parts.homes[*domain as usize];
        let mut clusters = self.clusters()[..=cluster].to_vec();
        let domains = &mut clusters[cluster].link_domains;
        domains.truncate(number as usize + 1);
        domains[number as usize].machines.truncate(usize::from(*slot) + 1);
        Self::new(clusters, None)
    }

    /// Creates one cluster, `cl1`, of link domains with these numbers of machines, which must be within the
    /// limits.
    fn one_cluster(machines: &[usize]) -> Self {
        let created = numbered_cluster("cl1", machines, &mut 0)
            .and_then(|cluster| Self::new(alloc::vec![cluster], None));
        match created {
            Ok(topology) => topology,
            Err(error) => unreachable!("presets are within the limits: {error}"),
        }
    }

    fn shape(cluster: &Cluster) -> Vec<usize> {
        cluster
            .link_domains
            .iter()
            .map(|domain| domain.machines.iter().flatten().count())
            .collect()
    }
}

/// Creates a cluster whose agents are numbered from `agents` on: `a1`, `a2`, ...
fn numbered_cluster(id: &str, machines: &[usize], agents: &mut usize) -> Result<Cluster, TopologyError> {
    let mut link_domains = Vec::new();
    for count in machines {
        let mut domain = LinkDomain::default();
        for _ in 0..*count {
            *agents += 1;
            domain.machines.push(Some(AgentId::new(format!("a{agents}"))?));
        }
        link_domains.push(domain);
    }
    Ok(Cluster {
        id: ClusterId::new(id)?,
        link_domains,
    })
}

impl FromStr for Topology {
    type Err = TopologyError;

    /// Parses a preset (`pod4`, `pod16`, `pod64`, `pod128`, `pod256`; case-insensitive), or clusters
    /// separated by `;`. Each cluster is a list of `COUNTxMACHINES` separated by `,` with an optional `ID=`
    /// before it. Clusters without an id are called `cl1`, `cl2`, ...; agents `a1`, `a2`, ... through all
    /// clusters.
    ///
    /// ```
    /// use ipu_core::hardware::Topology;
    ///
    /// assert_eq!("pod64".parse(), Ok(Topology::pod64()));
    /// assert_eq!("2x16,1x4".parse::<Topology>()?.ipus(), 2 * 64 + 16);
    /// assert_eq!("left=1x16;right=1x16".parse::<Topology>()?.clusters().len(), 2);
    /// # Ok::<(), ipu_core::hardware::TopologyError>(())
    /// ```
    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let invalid = || TopologyError::Text { text: text.into() };
        let trimmed = text.trim();
        if let Some((_, machines)) = PRESETS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(trimmed))
        {
            return Ok(Self::one_cluster(machines));
        }
        let (mut agents, mut domains) = (0, 0_usize);
        let mut clusters = Vec::new();
        for (number, part) in (1..).zip(trimmed.split(';')) {
            let (id, shape) = match part.split_once('=') {
                Some((id, shape)) => (String::from(id.trim()), shape),
                None => (format!("cl{number}"), part),
            };
            let mut machines = Vec::new();
            for group in shape.split(',') {
                let (count, size) = group.trim().split_once(['x', 'X']).ok_or_else(invalid)?;
                let count: usize = count.trim().parse().map_err(|_| invalid())?;
                let size: usize = size.trim().parse().map_err(|_| invalid())?;
                if count == 0 || size == 0 || size > Self::LINK_DOMAIN_MACHINES {
                    return Err(invalid());
                }
                // Over all clusters, and before any of them is built: a short text could otherwise exhaust
                // the memory.
                domains = domains.saturating_add(count);
                if domains > Self::MAX_LINK_DOMAINS {
                    return Err(TopologyError::TooManyLinkDomains);
                }
                machines.resize(machines.len() + count, size);
            }
            clusters.push(numbered_cluster(&id, &machines, &mut agents)?);
        }
        Self::new(clusters, None)
    }
}

impl fmt::Display for Topology {
    /// Formats text that parses to a topology of this shape, without the ids of agents and of allocations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [cluster] = &*self.parts.clusters
            && cluster.id.as_str() == "cl1"
            && let Some((name, _)) = PRESETS
                .iter()
                .find(|(_, machines)| Self::shape(cluster) == *machines)
        {
            return f.write_str(name);
        }
        for (number, cluster) in (1..).zip(&self.parts.clusters) {
            if number > 1 {
                f.write_str(";")?;
            }
            if cluster.id.as_str() != format!("cl{number}") {
                write!(f, "{}=", cluster.id)?;
            }
            let shape = Self::shape(cluster);
            for (place, group) in shape.chunk_by(|a, b| a == b).enumerate() {
                let comma = if place > 0 { "," } else { "" };
                write!(f, "{comma}{}x{}", group.len(), group.first().unwrap_or(&0))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::string::ToString as _;

    use super::*;

    #[test]
    fn presets_have_the_ipus_of_their_name() {
        for (name, ipus) in [
            ("pod4", 4),
            ("Pod16", 16),
            ("POD64", 64),
            ("pod128", 128),
            ("pod256", 256),
        ] {
            let topology: Topology = name.parse().unwrap();
            assert_eq!(topology.ipus(), ipus);
            assert_eq!(topology.to_string(), name.to_ascii_lowercase());
            assert_eq!(topology.allocations().len(), 1);
            assert_eq!(topology.allocations()[0].id.as_str(), "cl1");
        }
    }

    #[test]
    fn an_invalid_topology_text_is_rejected_with_an_example() {
        for text in [
            "",
            "pod17",
            "x",
            "0x4",
            "1x0",
            "1x17",
            "2x16,",
            "a=b",
            "1x16;;1x4",
            "99999999999999999999x1",
        ] {
            let error = text.parse::<Topology>().unwrap_err().to_string();
            assert!(error.contains("2x16,1x4"), "{text}: {error}");
        }
        assert_eq!("4096x1".parse::<Topology>().unwrap().machines(), 4096);
        assert_eq!(
            "4097x1".parse::<Topology>(),
            Err(TopologyError::TooManyLinkDomains)
        );
        // Would take hundreds of gigabytes if it were built before it is rejected.
        let text = "4096x16;".repeat(100_000);
        assert_eq!(text.parse::<Topology>(), Err(TopologyError::TooManyLinkDomains));
        assert!(matches!(
            "x=1x1;x=1x1".parse::<Topology>(),
            Err(TopologyError::DuplicateCluster { .. })
        ));
    }

    proptest! {
        #[test]
        fn a_displayed_topology_parses_to_the_same_topology(
            clusters in proptest::collection::vec(("([a-z]{1,4}=)?", proptest::collection::vec((1_usize..4, 1_usize..=16), 1..4)), 1..4),
        ) {
            let mut text = String::new();
            for (id, groups) in &clusters {
                let groups: Vec<String> = groups.iter().map(|(count, size)| format!("{count}x{size}")).collect();
                text += &format!("{}{id}{}", if text.is_empty() { "" } else { ";" }, groups.join(","));
            }
            if let Ok(topology) = text.parse::<Topology>() {
                prop_assert_eq!(topology.to_string().parse(), Ok(topology));
            }
        }
    }
}
