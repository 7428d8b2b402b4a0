//! Jobs with the machines of their hosts.

use ipu_slurm::conf::{ConfFiles, HostMap};
use ipu_slurm::host_map::{epilog_request, machines_of, may_name_node, task_has_machines};
use ipu_slurm::{HookEnvironment, HostMapRequest, InputError};
use proptest::prelude::*;

const MAP: &str = "host-1:a1,a2,a3,a4\nhost-2:a5,a6,a7\nhost-3:a8\n";
const MODEL: &str = "HostMap=/etc/slurm/ipum.allocs\nApiHost=pod\nIpuofDir=/d\n";

fn conf(vipu_conf: &str, models: &[(&str, &str)]) -> ConfFiles {
    ConfFiles::parse(("vipu.conf", vipu_conf), models).expect("it is valid")
}

fn map() -> HostMap {
    HostMap::parse("ipum.allocs", MAP).expect("it is valid")
}

/// Returns the variables of a job on these nodes, with others.
fn variables(nodes: &str, more: &[(&str, &str)]) -> HookEnvironment {
    let own = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_CLUSTER_NAME", "testbed"),
        ("SLURM_JOB_UID", "1000"),
        ("SLURM_JOB_USER", "ada"),
        ("SLURM_JOB_PARTITION", "ipu"),
        ("SLURM_JOB_NODELIST", nodes),
    ];
    let all = own.iter().chain(more);
    HookEnvironment::new(all.map(|(name, value)| ((*name).into(), (*value).into())))
}

fn request(nodes: &str, conf: &ConfFiles) -> Result<Option<HostMapRequest>, InputError> {
    HostMapRequest::parse(&variables(nodes, &[]), conf, &map())
}

#[test]
fn a_job_has_the_machines_of_its_nodes_and_their_largest_partition() {
    let conf = conf(MODEL, &[]);
    for (nodes, machines, ipus) in [
        ("host-1", "a1,a2,a3,a4", 16),
        ("host-2", "a5,a6,a7", 8),
        ("host-3", "a8", 4),
        ("host-[1-3]", "a1,a2,a3,a4,a5,a6,a7,a8", 32),
        ("host-3,host-1,cpu-[01-10]", "a8,a1,a2,a3,a4", 16),
    ] {
        let request = request(nodes, &conf).unwrap().expect("the nodes have machines");
        let names: Vec<&str> = request.machines.iter().map(|machine| machine.as_str()).collect();
        assert_eq!(names.join(","), machines);
        assert_eq!(request.job.ipus.ipus.get(), ipus, "{nodes}");
        assert_eq!(request.job.ipus.model, "vipu");
    }
    assert_eq!(request("cpu-[1-4]", &conf).unwrap(), None);
}

#[test]
fn the_limits_of_the_model_apply() {
    let limited = conf(&format!("{MODEL}MaxIpusPerJob=12\n"), &[]);
    let request_of = |conf| request("host-1", conf).unwrap().expect("it has machines");
    assert_eq!(request_of(&limited).job.ipus.ipus.get(), 8);
    let link = conf("HostMap=/m\nVipuIpuofDir=/d\n", &[("pod64", "ApiHost=pod\n")]);
    assert_eq!(request_of(&link).job.ipus.model, "pod64");
}

#[test]
fn a_reconfigurable_partition_has_at_most_64_ipus() {
    let conf = conf(&format!("{MODEL}UseReconfigPartition=1\n"), &[]);
    let machines: Vec<String> = (0..32).map(|number| format!("m{number}")).collect();
    let map = HostMap::parse("f", &format!("host-1:{}\n", machines.join(","))).unwrap();
    let request = HostMapRequest::parse(&variables("host-1", &[]), &conf, &map).unwrap();
    assert_eq!(request.expect("it has machines").job.ipus.ipus.get(), 64);
}

#[test]
fn later_components_of_heterogeneous_jobs_have_no_machines_of_their_own() {
    let component = variables("host-1", &[("SLURM_HET_JOB_OFFSET", "1")]);
    let conf = conf(MODEL, &[]);
    assert_eq!(HostMapRequest::parse(&component, &conf, &map()), Ok(None));
    assert_eq!(epilog_request(&component), Ok(None));
    assert!(epilog_request(&variables("host-1", &[])).unwrap().is_some());
    let task = variables("host-1", &[("SLURM_HET_SIZE", "2")]);
    assert_eq!(task_has_machines(&task, &map()), Ok(false));
    assert_eq!(task_has_machines(&variables("host-1", &[]), &map()), Ok(true));
}

#[test]
fn bad_input_is_refused_by_name() {
    let one = conf(MODEL, &[]);
    for (nodes, rule) in [
        ("host-[1", "SLURM_JOB_NODELIST = host-[1: a bracket is not closed"),
        ("", "SLURM_JOB_NODELIST is absent: must be set"),
        ("host-1\nhost-2", "a node name has letters"),
    ] {
        let error = request(nodes, &one).unwrap_err().to_string();
        assert!(error.contains(rule), "{error}");
    }
    let two = conf(MODEL, &[("pod16", "ApiHost=other\nIpuofDir=/d\n")]);
    let none = conf("HostMap=/m\n", &[]);
    for (conf, rule) in [
        (
            &two,
            "works with one V-IPU controller, and pod16 and vipu have two",
        ),
        (&none, "needs a model with the V-IPU controller of the machines"),
    ] {
        let error = request("host-1", conf).unwrap_err().to_string();
        assert!(error.contains(rule), "{error}");
    }
}

#[test]
fn a_map_with_mistakes_still_shows_its_hosts() {
    let nodes = |text: &str| vec![text.to_owned()];
    let map = "host-1 : a1\n#host-2:a2\nhost-10:a3";
    assert!(may_name_node(map, &nodes("host-1")));
    assert!(may_name_node(map, &nodes("host-10")));
    assert!(!may_name_node(map, &nodes("host-")));
    assert!(!may_name_node(map, &nodes("host")));
    assert!(may_name_node("host-[1-4]:a1", &nodes("host-3")));
    assert!(!may_name_node("host-[1-4]:a1", &[]));
}

proptest! {
    #[test]
    fn no_node_list_makes_the_parser_panic(nodes in "(?s).{0,60}") {
        let _ = request(&nodes, &conf(MODEL, &[]));
    }

    #[test]
    fn the_machines_of_two_jobs_with_nodes_of_their_own_are_disjoint(
        nodes in Just(["host-1", "host-2", "host-3", "cpu-1"]).prop_shuffle(), first in 0..5_usize,
    ) {
        let machines = |nodes: &[&str]| {
            machines_of(&variables(&nodes.join(","), &[]), &map()).unwrap_or_default()
        };
        let (left, right) = (machines(&nodes[..first.min(4)]), machines(&nodes[first.min(4)..]));
        prop_assert!(left.iter().all(|machine| !right.contains(machine)));
        prop_assert_eq!(left.len() + right.len(), 8);
    }
}
