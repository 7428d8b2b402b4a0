//! Topologies from controller listings and from JSON, and invalid ones.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::AgentId;
use ipu_core::hardware::{AgentAttributes, DiscoveredTopology, IpuAddress, Topology, TopologyError};
use ipu_testkit::strategies::topologies;
use proptest::prelude::*;

type Agents = BTreeMap<AgentId, AgentAttributes>;

/// Returns the agent attributes that a controller with this hardware lists, with all IPUs healthy.
fn agents_of(topology: &Topology) -> Agents {
    let mut agents = Agents::new();
    for (agent, _) in topology.agents() {
        let ids: Vec<&str> = topology
            .allocations()
            .iter()
            .filter(|allocation| allocation.agents.contains(agent))
            .map(|allocation| allocation.id.as_str())
            .collect();
        for (hardware, at) in (0..).zip(topology.agent_ipus(agent).unwrap()) {
            let (cluster, place) = topology.place(at).unwrap();
            let mut attributes = BTreeMap::from([
                ("cluster".into(), cluster.to_string()),
                ("linkDomain".into(), place.link_domain.to_string()),
                ("ipu".into(), place.ipu.to_string()),
                ("health".into(), "ok".into()),
                ("fanSpeed".into(), "3000".into()),
            ]);
            if !ids.is_empty() {
                attributes.insert("allocation".into(), ids.join(","));
            }
            agents
                .entry(agent.clone())
                .or_default()
                .insert(hardware, attributes);
        }
    }
    agents
}

/// Returns agents with only these attributes on each of their four IPUs.
fn agents_with(names: &[&str], attributes: &[(&str, &str)]) -> Agents {
    let attributes: BTreeMap<String, String> = attributes
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect();
    let ipus: AgentAttributes = (0..4).map(|hardware| (hardware, attributes.clone())).collect();
    names
        .iter()
        .map(|name| (name.parse().unwrap(), ipus.clone()))
        .collect()
}

#[track_caller]
fn assert_rejected(agents: &Agents, expected: &str) {
    let error = Topology::from_agents(agents).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// Returns the facts that a list of agents determines: clusters, agents with their places, and allocations.
fn facts(topology: &Topology) -> BTreeSet<(String, String, u32, u32, Vec<String>)> {
    let facts = topology.agents().map(|(agent, at)| {
        let (cluster, place) = topology.place(at).unwrap();
        let allocations = topology
            .allocations()
            .iter()
            .filter(|allocation| allocation.agents.contains(agent));
        let mut allocations: Vec<String> = allocations.map(|allocation| allocation.id.to_string()).collect();
        allocations.sort();
        (
            agent.to_string(),
            cluster.to_string(),
            place.link_domain,
            place.ipu,
            allocations,
        )
    });
    facts.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_topology_is_rebuilt_from_its_agents(topology in topologies()) {
        prop_assume!(!topology.allocations().is_empty());
        let found = Topology::from_agents(&agents_of(&topology)).unwrap();
        prop_assert_eq!(facts(&found.topology), facts(&topology));
        prop_assert_eq!(found.unhealthy, []);
    }

    #[test]
    fn a_topology_round_trips_through_json(topology in topologies()) {
        let text = serde_json::to_string(&topology).unwrap();
        prop_assert_eq!(serde_json::from_str::<Topology>(&text).unwrap(), topology);
    }

    #[test]
    fn allocations_share_agents_if_they_have_one_in_common(topology in topologies()) {
        for one in topology.allocations() {
            for other in topology.allocations() {
                let common = !one.agents.is_disjoint(&other.agents);
                prop_assert_eq!(topology.share_agents(&one.id, &other.id), common);
            }
        }
    }

    #[test]
    fn the_first_machines_of_a_topology_keep_their_places(topology in topologies(), machines in 0_u32..80) {
        let places = |topology: &Topology| {
            let place = |(agent, at): (&AgentId, _)| (at, topology.place(at).unwrap().1, agent.clone());
            topology.agents().map(place).collect::<BTreeSet<_>>()
        };
        let first: BTreeSet<_> = places(&topology).into_iter().take(machines as usize).collect();
        match topology.with_first_machines(machines) {
            Ok(kept) => {
                let last = first.last().map(|(at, ..)| at.link_domain + 1);
                prop_assert_eq!(Some(kept.link_domains()), last);
                prop_assert_eq!(places(&kept), first);
            }
            Err(error) => prop_assert_eq!((error, machines), (TopologyError::NoMachines, 0)),
        }
    }

    #[test]
    fn an_address_and_a_controller_place_identify_the_same_ipu(topology in topologies(), domain in 0_u32..10, ipu in 0_u8..70) {
        let at = IpuAddress { link_domain: domain, ipu };
        let place = topology.place(at).map(|(cluster, place)| (cluster.clone(), place));
        prop_assert_eq!(place.is_some(), topology.contains(at));
        prop_assert_eq!(place.is_some(), topology.agent_at(at).is_some());
        if let Some((cluster, place)) = place {
            prop_assert_eq!(topology.address(&cluster, place), Some(at));
            let agent = topology.agent_at(at).unwrap();
            prop_assert!(topology.agent_ipus(agent).unwrap().contains(&at));
        }
    }
}

#[test]
fn agents_without_a_place_fill_link_domains_of_sixteen_in_natural_order() {
    let names: Vec<String> = (1..=20).map(|number| format!("a{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = Topology::from_agents(&agents_with(&names, &[])).unwrap();
    assert_eq!(found.topology.to_string(), "1x16,1x4");
    let at = |link_domain, ipu| {
        found
            .topology
            .agent_at(IpuAddress { link_domain, ipu })
            .unwrap()
            .as_str()
    };
    assert_eq!(
        [at(0, 0), at(0, 7), at(0, 36), at(1, 0)],
        ["a1", "a2", "a10", "a17"]
    );
    let named = Topology::from_agents(&agents_with(
        &["b-2", "b-10", "b-02", "100"],
        &[("cluster", "left")],
    ))
    .unwrap();
    assert_eq!(named.topology.clusters()[0].id.as_str(), "left");
    let order: Vec<_> = named.topology.clusters()[0].link_domains[0]
        .machines
        .iter()
        .flatten()
        .collect();
    assert_eq!(
        order.iter().map(|agent| agent.as_str()).collect::<Vec<_>>(),
        ["100", "b-02", "b-2", "b-10"]
    );
}

#[test]
fn ipus_that_are_bad_or_unlisted_are_unhealthy() {
    let mut agents = agents_of(&Topology::pod16());
    let second: AgentId = "a2".parse().unwrap();
    let ipus = agents.get_mut(&second).unwrap();
    ipus.remove(&3);
    ipus.get_mut(&0).unwrap().insert("health".into(), "bad".into());
    let DiscoveredTopology {
        topology, unhealthy, ..
    } = Topology::from_agents(&agents).unwrap();
    assert_eq!(topology.ipus(), 16);
    assert_eq!(unhealthy, [4, 7].map(|ipu| IpuAddress { link_domain: 0, ipu }));
}

#[test]
fn clusters_with_too_many_link_domains_are_rejected_before_allocation() {
    // Building them first would allocate gigabytes of empty link domains.
    let place = |number: u32| {
        let agent = AgentId::new(format!("a{number}")).unwrap();
        let attributes = [
            ("cluster", format!("c{number}")),
            ("linkDomain", "4095".into()),
            ("ipu", "0".into()),
        ];
        let attributes = attributes
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        (agent, BTreeMap::from([(0, attributes)]))
    };
    let agents: Agents = (0..50_000).map(place).collect();
    assert_eq!(
        Topology::from_agents(&agents).unwrap_err(),
        TopologyError::TooManyLinkDomains
    );
}

#[test]
fn the_last_link_domain_may_be_listed_after_others() {
    let mut agents = agents_with(&["a1"], &[("linkDomain", "0"), ("ipu", "0")]);
    agents.extend(agents_with(&["a2"], &[("linkDomain", "4095"), ("ipu", "0")]));
    let found = Topology::from_agents(&agents).unwrap();
    assert_eq!(found.topology.link_domains() as usize, Topology::MAX_LINK_DOMAINS);
    assert_eq!(found.topology.with_first_machines(2), Ok(found.topology));
    let place = [("cluster", "other"), ("linkDomain", "0"), ("ipu", "0")];
    agents.extend(agents_with(&["a3"], &place));
    assert_rejected(&agents, "at most 4096 link domains");
}

#[test]
fn contradictory_attributes_are_rejected_with_agent_value_and_rule() {
    assert_rejected(&BTreeMap::new(), "at least one machine");
    assert_rejected(
        &agents_with(&["a1"], &[("linkDomain", "0")]),
        "attribute ipu of IPU 0 of agent a1 is \"\"",
    );
    assert_rejected(
        &agents_with(&["a1"], &[("linkDomain", "x"), ("ipu", "0")]),
        "is \"x\": every IPU has the number of its link domain",
    );
    assert_rejected(
        &agents_with(&["a1"], &[("linkDomain", "4096"), ("ipu", "0")]),
        "is \"4096\"",
    );
    assert_rejected(
        &agents_with(&["a1", "a2"], &[("linkDomain", "0"), ("ipu", "9")]),
        "agents a1 and a2 are both listed",
    );
    let mut agents = agents_of(&Topology::pod4());
    let ipus = agents.values_mut().next().unwrap();
    ipus.get_mut(&1).unwrap().insert("cluster".into(), "other".into());
    assert_rejected(
        &agents,
        "attribute cluster of IPU 1 of agent a1 is \"other\": all IPUs of a machine have the same",
    );
    let mut agents = agents_with(&["a1", "a2"], &[("allocation", "one")]);
    for (number, (_, ipus)) in agents.iter_mut().enumerate() {
        for attributes in ipus.values_mut() {
            attributes.insert("cluster".into(), format!("cl{number}"));
        }
    }
    assert_rejected(&agents, "agent a2 of allocation one is not in cluster cl0");
}

#[test]
fn json_that_violates_a_rule_is_rejected() {
    let parse = |text: &str| {
        serde_json::from_str::<Topology>(text)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(parse(r#"{"clusters": []}"#).contains("at least one machine"));
    assert!(
        parse(r#"{"clusters": [{"id": "c", "linkDomains": [["a", "a"]]}]}"#)
            .contains("agent a is given twice")
    );
    let allocation = r#"{"clusters": [{"id": "c", "linkDomains": [["a"]]}],
        "allocations": [{"id": "x", "cluster": "d", "agents": ["a"]}]}"#;
    assert!(parse(allocation).contains("allocation x names cluster d, which does not exist"));
    let seventeen = format!(
        r#"{{"clusters": [{{"id": "c", "linkDomains": [{:?}]}}]}}"#,
        (0..17).map(|n| format!("a{n}")).collect::<Vec<_>>()
    );
    assert!(parse(&seventeen).contains("has 17 machines; at most 16 fit"));
    assert_eq!(Topology::new(Vec::new(), None), Err(TopologyError::NoMachines));
}
