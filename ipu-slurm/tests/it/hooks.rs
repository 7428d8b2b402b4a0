//! Environments of hooks, captured from Slurm 22.05, 24.11 and 26.05.

mod node;
mod properties;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use ipu_slurm::conf::ConfFiles;
use ipu_slurm::{
    EpilogRequest, HookEnvironment, InputError, PrologRequest, RunId, TaskRequest, cluster_namespace,
};

use crate::scontrol::VERSIONS;

/// The configuration of two models.
fn conf() -> ConfFiles {
    let cluster = "VipuIpuofDir=/home/ipuof\n";
    let pod64 = "ApiHost=ipu-pod64-001\nMaxIpusPerJob=64\n";
    let pod16 = "ApiHost=ipu-pod16-001\nMaxIpusPerJob=16\n";
    ConfFiles::parse(("vipu.conf", cluster), &[("pod64", pod64), ("pod16", pod16)]).expect("it is valid")
}

type Variables = Vec<(OsString, OsString)>;

/// Returns the captured variables of a hook.
fn captured(version: &str, name: &str) -> Variables {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let path = format!("{directory}/hooks-{version}/{name}.env");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.into(), value.into())).collect()
}

/// Sets a variable, or removes it.
fn with(mut variables: Variables, name: &str, value: Option<&str>) -> Variables {
    variables.retain(|(key, _)| key != name);
    variables.extend(value.map(|value| (name.into(), value.into())));
    variables
}

fn prolog(variables: Variables) -> Result<Option<PrologRequest>, InputError> {
    PrologRequest::parse(&HookEnvironment::new(variables), &conf())
}

fn epilog(variables: Variables) -> Result<Option<EpilogRequest>, InputError> {
    EpilogRequest::parse(&HookEnvironment::new(variables), Some(&conf()))
}

fn task(variables: Variables) -> Result<TaskRequest, InputError> {
    TaskRequest::parse(&HookEnvironment::new(variables), &["pod64", "pod16"])
}

/// Returns the message of PrologSlurmctld with other values of a captured job of 4 IPUs.
fn refusal(changes: &[(&str, Option<&str>)]) -> String {
    let start = captured("22.05", "prolog-slurmctld");
    let variables = changes
        .iter()
        .fold(start, |v, (name, value)| with(v, name, *value));
    let error = prolog(variables).expect_err("the request is refused").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn a_job_with_ipus_is_read_alike_on_every_version() {
    for version in VERSIONS {
        let request = prolog(captured(version, "prolog-slurmctld")).unwrap().unwrap();
        let identity = &request.identity;
        assert_eq!((identity.job_id, identity.cluster.as_str()), (1, "testbed"));
        assert_eq!(identity.sluid.is_some(), version == "26.05");
        assert_eq!(request.account, None);
        let ipus = &request.ipus;
        assert_eq!((ipus.model.as_str(), ipus.ipus.get(), ipus.gcds), ("pod64", 4, 1));
        assert!(!ipus.reconfigurable);
        let end = epilog(captured(version, "epilog-slurmctld")).unwrap().unwrap();
        assert_eq!(end.identity, request.identity);
    }
}

#[test]
fn a_job_without_ipus_is_none_whatever_its_other_values_are() {
    for version in ["22.05", "24.11"] {
        let variables = captured(version, "prolog-slurmctld-no-ipus");
        assert_eq!(prolog(variables.clone()), Ok(None));
        let other = with(variables, "SLURM_JOB_LICENSES", Some("matlab:1|ansys@db:2"));
        assert_eq!(prolog(other), Ok(None));
    }
}

#[test]
fn a_later_component_of_a_heterogeneous_job_has_the_option_but_no_ipus() {
    for version in VERSIONS {
        let second = captured(version, "prolog-slurmctld-het");
        assert!(
            second.iter().any(|(name, _)| name == "SPANK_VIPU_IPUS"),
            "{version}"
        );
        assert_eq!(prolog(second.clone()), Ok(None), "{version}");
        let epilog_of = with(second.clone(), "SLURM_SCRIPT_CONTEXT", Some("epilog_slurmctld"));
        assert_eq!(epilog(epilog_of), Ok(None), "{version}");
        // Slurm 22.05 accepts licenses on every component.
        let error = prolog(with(second.clone(), "SLURM_JOB_LICENSES", Some("pod64:1"))).unwrap_err();
        assert!(
            error.to_string().contains("ask for them on the first component"),
            "{error}"
        );
        let bad = prolog(with(second, "SLURM_HET_JOB_OFFSET", Some("x"))).unwrap_err();
        assert!(bad.to_string().contains("SLURM_HET_JOB_OFFSET"), "{bad}");
    }
}

#[test]
fn licenses_alone_are_a_request() {
    let variables = captured("22.05", "prolog-slurmctld-account");
    // pod64:4,pod16
    let error = prolog(variables.clone()).unwrap_err().to_string();
    assert!(error.contains("one model"), "{error}");
    let variables = with(variables, "SLURM_JOB_LICENSES", Some("pod64:4,pod64_4:1,matlab"));
    let request = prolog(variables).unwrap().unwrap();
    assert_eq!(
        (request.ipus.ipus.get(), request.account.unwrap().as_str()),
        (4, "acct")
    );
}

#[test]
fn options_of_the_plugin_reach_the_request() {
    let variables = [
        ("SPANK_VIPU_MODEL", "pod64"),
        ("SPANK_VIPU_GCDS", "2"),
        ("SPANK_VIPU_RECONFIGURABLE", "1"),
        ("SPANK__SLURM_SPANK_OPTION_vipu_ipu_reconfigurable", "(null)"),
    ];
    let start = captured("24.11", "prolog-slurmctld");
    let variables = variables
        .into_iter()
        .fold(start, |v, (name, value)| with(v, name, Some(value)));
    let ipus = prolog(variables).unwrap().unwrap().ipus;
    assert_eq!((ipus.gcds, ipus.reconfigurable), (2, true));
}

#[test]
fn a_hook_without_the_variables_of_a_job_is_no_hook_of_slurm() {
    let without = |name: &str| {
        let variables = captured("22.05", "prolog-slurmctld");
        HookEnvironment::new(with(variables, name, None))
    };
    let check = |name: &str| PrologRequest::job(&without(name));
    for name in [
        "SLURM_JOB_ID",
        "SLURM_CLUSTER_NAME",
        "SLURM_JOB_UID",
        "SLURM_JOB_USER",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_NODELIST",
    ] {
        let error = check(name).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
    // A job without IPUs and without an account.
    check("SLURM_JOB_LICENSES").unwrap();
    check("SLURM_JOB_ACCOUNT").unwrap();
    assert!(PrologRequest::check_context(&without("SLURM_SCRIPT_CONTEXT")).is_err());
}

#[test]
fn every_name_of_a_cluster_is_a_namespace_of_its_own() {
    for (name, namespace) in [
        ("testbed", "testbed"),
        ("hpc_ipu", "hpc_ipu"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("z\u{fc}rich", "z%C3%BCrich"),
    ] {
        assert_eq!(cluster_namespace(name).unwrap().as_str(), namespace);
    }
    assert!(cluster_namespace("").is_err());
}

#[test]
fn bad_values_are_refused_with_one_line() {
    for (changes, expected) in [
        (
            &[("SLURM_JOB_ID", None)][..],
            "SLURM_JOB_ID is absent: must be set",
        ),
        (&[("SLURM_JOB_ID", Some("x"))], "must be a number"),
        (&[("SLURM_JOB_ID", Some("-1"))], "must be a number"),
        (&[("SLURM_JOB_ID", Some("4294967296"))], "must be a number"),
        (&[("SLURM_JOB_ID", Some("2"))], "must be the same as SLURM_JOB_ID"),
        (
            &[("SLURM_JOB_UID", Some(""))],
            "SLURM_JOB_UID is absent: must be set",
        ),
        (
            &[("SLURM_CLUSTER_NAME", None)],
            "SLURM_CLUSTER_NAME is absent: must be set",
        ),
        (&[("SLURM_JOB_ACCOUNT", Some("a \"b"))], "use another account"),
        (&[("SLURM_SCRIPT_CONTEXT", None)], "do not start it by hand"),
        (
            &[("SLURM_SCRIPT_CONTEXT", Some("epilog_slurmctld"))],
            "must be prolog_slurmctld",
        ),
        (&[("SLURM_JOB_SLUID", Some("a/b"))], "SLURM_JOB_SLUID"),
        (&[("SLURM_JOB_LICENSES", None)], "install job_submit.lua"),
        (
            &[("SLURM_JOB_LICENSES", Some("matlab:4"))],
            "needs a license of a model",
        ),
        (
            &[("SLURM_JOB_LICENSES", Some("pod64:8"))],
            "must be the same as --ipus=4",
        ),
        (
            &[("SLURM_JOB_LICENSES", Some("pod64:4|pod16:4"))],
            "alternatives are not supported",
        ),
        (
            &[("SPANK_VIPU_IPUS", Some("8"))],
            "must be 4 as in SPANK__SLURM_SPANK_OPTION_vipu_ipus",
        ),
        (&[("SPANK_VIPU_MODEL", Some("pod16"))], "must be pod64"),
        (&[("SPANK_VIPU_GCDS", Some("3"))], "must divide the 4 IPUs"),
        (&[("SPANK_VIPU_GCDS", Some("0"))], "must divide the 4 IPUs"),
        (&[("SPANK_VIPU_GCDS", Some("8"))], "from 1 to 4 in --ipu-gcds"),
        (
            &[("SLURM_HET_JOB_OFFSET", Some("1"))],
            "ask for them on the first component",
        ),
    ] {
        let error = refusal(changes);
        assert!(error.contains(expected), "{changes:?}: {error}");
    }
    let without_option = [
        ("SPANK_VIPU_IPUS", None),
        ("SPANK__SLURM_SPANK_OPTION_vipu_ipus", None),
    ];
    for (licenses, expected) in [
        (
            "pod64:3",
            "= pod64:3: the IPUs of a partition are a power of two; ask for 4",
        ),
        ("pod64:128", "at most 64 IPUs of pod64"),
        ("pod16:32", "at most 16 IPUs of pod16"),
        ("pod64:0", "a power of two; ask for 1"),
        ("pod64:2,pod64", "= pod64:3: the IPUs"),
        ("matlab:x;pod64=3", "= pod64:3: the IPUs"),
    ] {
        let mut changes = without_option.to_vec();
        changes.push(("SLURM_JOB_LICENSES", Some(licenses)));
        let error = refusal(&changes);
        assert!(error.contains(expected), "{licenses}: {error}");
    }
    assert!(refusal(&[("SLURM_JOBID", Some("7"))]).contains("SLURM_JOBID"));
}

#[test]
fn a_value_that_is_not_utf_8_is_refused() {
    let bytes = || OsString::from_vec(vec![b'4', 0xff]);
    for name in [
        "SLURM_JOB_ID",
        "SPANK_VIPU_IPUS",
        "SLURM_JOB_LICENSES",
        "SLURM_JOB_USER",
    ] {
        let mut variables = with(captured("26.05", "prolog-slurmctld"), name, None);
        variables.push((name.into(), bytes()));
        let error = prolog(variables).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("must be UTF-8"), "{error}");
    }
}

#[test]
fn the_end_of_a_job_is_read_although_its_request_would_be_refused_now() {
    let variables = captured("22.05", "epilog-slurmctld");
    for (name, value) in [
        ("SLURM_JOB_LICENSES", Some("pod64:3")),
        ("SLURM_JOB_LICENSES", Some("pod64:4|x")),
        ("SLURM_JOB_LICENSES", None),
        ("SPANK_VIPU_IPUS", Some("x")),
        ("SLURM_JOB_ACCOUNT", Some("a b")),
    ] {
        let request = epilog(with(variables.clone(), name, value)).unwrap();
        assert_eq!(request.unwrap().identity.job_id, 1, "{name}={value:?}");
    }
    let other = with(
        with(variables, "SPANK_VIPU_IPUS", None),
        "SPANK__SLURM_SPANK_OPTION_vipu_ipus",
        None,
    );
    let other = with(other, "SLURM_JOB_LICENSES", Some("matlab:4"));
    assert_eq!(epilog(other.clone()), Ok(None));
    let request = EpilogRequest::parse(&HookEnvironment::new(other), None).unwrap();
    assert!(
        request.is_some(),
        "without a configuration, any license may be a model's"
    );
}

#[test]
fn a_task_knows_that_its_job_asked_for_ipus() {
    for version in VERSIONS {
        let request = task(captured(version, "task-prolog-batch")).unwrap();
        assert_eq!((request.identity.job_id, request.task), (1, 0));
        for step in ["task-prolog-batch", "task-prolog-srun", "task-prolog-export-none"] {
            let request = task(captured(version, step)).unwrap();
            assert!(request.requests_ipus, "{version} {step}");
        }
        assert_eq!(request.identity.env_file_name(), "testbed-1.env");
        let forged = task(captured(version, "task-prolog-forged")).unwrap();
        assert_eq!(
            (forged.identity.sluid, forged.requests_ipus),
            (None, false),
            "{version}"
        );
    }
    let licenses_only = with(
        with(
            captured("24.11", "task-prolog-batch"),
            "SLURM_SPANK_VIPU_IPUS",
            None,
        ),
        "VIPU_IPUS",
        None,
    );
    let inherited = task(licenses_only).unwrap();
    assert!(inherited.requests_ipus && inherited.may_be_inherited);
    let models = ["pod64"];
    assert!(!inherited.clone().with_licenses("(null)", &models).requests_ipus);
    assert!(inherited.clone().with_licenses("pod64:4", &models).requests_ipus);
    assert!(inherited.assume_own_licenses().requests_ipus);
}

#[test]
fn the_run_is_the_sluid_or_the_submission() {
    let key = |version, submitted| {
        let request = prolog(captured(version, "prolog-slurmctld")).unwrap().unwrap();
        request.identity.run_key(submitted)
    };
    assert_eq!(
        key("22.05", Some("1795599477")).unwrap().to_string(),
        "1.1795599477"
    );
    assert!(key("22.05", None).unwrap_err().to_string().contains("SubmitTime"));
    assert!(key("22.05", Some("2026-11-25T09:37:57")).is_err());
    let sluid = RunId::from_sluid("s7CHM89146VJ00").unwrap();
    assert_eq!(key("26.05", Some("1795599506")).unwrap().run, sluid);
}
