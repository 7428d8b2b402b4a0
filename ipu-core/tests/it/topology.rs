//! Topologies from what a controller lists, from JSON, and what is refused.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::{AgentAttributes, AgentId, DiscoveredTopology, IpuAddress, Topology, TopologyError};
use ipu_testkit::strategies::topologies;
use proptest::prelude::*;

type Agents = BTreeMap<AgentId, AgentAttributes>;

/// What a controller with this hardware lists, every IPU healthy.
fn listed(topology: &Topology) -> Agents {
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

/// Agents that list only these attributes of each of their four IPUs.
fn bare(names: &[&str], attributes: &[(&str, &str)]) -> Agents {
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
fn refused(agents: &Agents, expected: &str) {
    let error = Topology::from_agents(agents).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// Clusters, agents with their places, and allocations: all that can be read back from a list of agents.
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
    fn the_agents_of_a_topology_tell_that_topology(topology in topologies()) {
        prop_assume!(!topology.allocations().is_empty());
        let found = Topology::from_agents(&listed(&topology)).unwrap();
        prop_assert_eq!(facts(&found.topology), facts(&topology));
        prop_assert_eq!(found.unhealthy, []);
    }

    #[test]
    fn a_topology_survives_its_json_form(topology in topologies()) {
        let text = serde_json::to_string(&topology).unwrap();
        prop_assert_eq!(serde_json::from_str::<Topology>(&text).unwrap(), topology);
    }

    #[test]
    fn an_address_and_the_words_of_a_controller_are_two_names_of_one_ipu(topology in topologies(), domain in 0_u32..10, ipu in 0_u8..70) {
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
fn agents_that_tell_no_place_are_taken_in_natural_order_sixteen_to_a_link_domain() {
    let names: Vec<String> = (1..=20).map(|number| format!("a{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = Topology::from_agents(&bare(&names, &[])).unwrap();
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
    let named = Topology::from_agents(&bare(&["b-2", "b-10", "b-02"], &[("cluster", "left")])).unwrap();
    assert_eq!(named.topology.clusters()[0].id.as_str(), "left");
    let order: Vec<_> = named.topology.clusters()[0].link_domains[0]
        .machines
        .iter()
        .flatten()
        .collect();
    assert_eq!(
        order.iter().map(|agent| agent.as_str()).collect::<Vec<_>>(),
        ["b-02", "b-2", "b-10"]
    );
}

#[test]
fn ipus_that_are_not_ok_or_not_listed_are_unhealthy() {
    let mut agents = listed(&Topology::pod16());
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
fn many_clusters_of_a_far_link_domain_each_are_refused_before_they_are_made() {
    // Made first, they would take gigabytes of empty link domains.
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
fn attributes_that_contradict_are_refused_with_agent_value_and_rule() {
    refused(&BTreeMap::new(), "at least one machine");
    refused(
        &bare(&["a1"], &[("linkDomain", "0")]),
        "attribute ipu of IPU 0 of agent a1 is \"\"",
    );
    refused(
        &bare(&["a1"], &[("linkDomain", "x"), ("ipu", "0")]),
        "is \"x\": every IPU has the number of its link domain",
    );
    refused(
        &bare(&["a1"], &[("linkDomain", "4096"), ("ipu", "0")]),
        "is \"4096\"",
    );
    refused(
        &bare(&["a1", "a2"], &[("linkDomain", "0"), ("ipu", "9")]),
        "agents a1 and a2 both say",
    );
    let mut agents = listed(&Topology::pod4());
    let ipus = agents.values_mut().next().unwrap();
    ipus.get_mut(&1).unwrap().insert("cluster".into(), "other".into());
    refused(
        &agents,
        "attribute cluster of IPU 1 of agent a1 is \"other\": all IPUs of a machine have the same",
    );
    let mut agents = bare(&["a1", "a2"], &[("allocation", "one")]);
    for (number, (_, ipus)) in agents.iter_mut().enumerate() {
        for attributes in ipus.values_mut() {
            attributes.insert("cluster".into(), format!("cl{number}"));
        }
    }
    refused(&agents, "agent a2 of allocation one is not in cluster cl0");
}

#[test]
fn json_that_breaks_a_rule_is_refused() {
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
    assert!(parse(allocation).contains("allocation x names cluster d, which is not there"));
    let seventeen = format!(
        r#"{{"clusters": [{{"id": "c", "linkDomains": [{:?}]}}]}}"#,
        (0..17).map(|n| format!("a{n}")).collect::<Vec<_>>()
    );
    assert!(parse(&seventeen).contains("has 17 machines; at most 16 fit"));
    assert_eq!(Topology::new(Vec::new(), None), Err(TopologyError::NoMachines));
}
