//! Environments of Slurm's hooks.

use ipu_slurm::conf::{ConfFiles, HostMap};
use ipu_slurm::{
    EpilogRequest, HookEnvironment, HostMapRequest, NodeHook, NodeRequest, NodeTaskRequest, PrologRequest,
    RunStart, TaskRequest,
};

use crate::error_messages::{check_error, text};

/// Parses the input, lines of `NAME=value`, as the environment of each hook.
///
/// # Panics
///
/// If a request breaks a limit, the end of a job whose begin is read is not read, or a message is too long.
pub fn slurm_hooks(bytes: &[u8]) {
    let text = text(bytes);
    let pairs = || text.lines().filter_map(|line| line.split_once('='));
    let model = "ApiHost=h\nIpuofDir=/d\nMaxIpusPerJob=64\n";
    let conf = ConfFiles::parse(("vipu.conf", ""), &[("pod64", model)]).expect("it is valid");
    let environment = |context: &str| {
        let context = [("SLURM_SCRIPT_CONTEXT".into(), context.into())];
        HookEnvironment::new(
            pairs()
                .map(|(name, value)| (name.into(), value.into()))
                .chain(context),
        )
    };
    let end = EpilogRequest::parse(&environment("epilog_slurmctld"), Some(&conf));
    match PrologRequest::parse(&environment("prolog_slurmctld"), &conf) {
        Ok(Some(request)) => {
            let ipus = request.ipus;
            assert!(ipus.ipus.get() <= 64 && ipus.ipus.get() % ipus.gcds == 0);
            let end = end.as_ref().map(|end| end.as_ref().map(|end| &end.identity));
            assert_eq!(end, Ok(Some(&request.identity)));
            if let Ok(run) = request.identity.run_key(Some("1795599506")) {
                RunStart::first(run)
                    .owner(request.identity.cluster.as_str())
                    .expect("the parts are valid");
            }
        }
        Ok(None) => {}
        Err(error) => check_error(&error, 200),
    }
    if let Err(error) = &end {
        check_error(error, 200);
    }
    let map = HostMap::parse("ipum.allocs", "n1:ipum1,ipum2\n").expect("it is valid");
    match HostMapRequest::parse(&environment("prolog_slurmctld"), &conf, &map) {
        Ok(Some(hosted)) => assert!(!hosted.machines.is_empty() && hosted.machines.len() <= 2),
        Ok(None) => {}
        Err(error) => check_error(&error, 200),
    }
    for (context, hook) in [
        ("prolog_slurmd", NodeHook::Prolog),
        ("epilog_slurmd", NodeHook::Epilog),
    ] {
        match NodeRequest::parse(&environment(context), hook) {
            Ok(request) => assert!(!request.node.contains('/')),
            Err(error) => check_error(&error, 200),
        }
    }
    match NodeTaskRequest::parse(&environment("prolog_task")) {
        Ok(task) => assert!(!task.node.contains('/')),
        Err(error) => check_error(&error, 200),
    }
    if let Err(error) = TaskRequest::parse(&environment("prolog_task"), &["pod64"]) {
        check_error(&error, 200);
    }
}
