//! A run that ends while its hook waits.

use std::fs;

use super::*;
use crate::fake_slurm::fake_slurm;
use crate::scripted_proxy::{Response, ScriptedProxy};

/// The job until the file `ended` exists. The proxy creates the file.
const SQUEUE: &str = "cd \"${0%/*}\"; test -e ended && state=PENDING || state=CONFIGURING; \
                      echo \"7|N/A|N/A|$state|None|1:00|900|n1|pod64:4||vipu: held\"";
const SCONTROL: &str = "echo \"$@\" >>\"${0%/*}/changes\"";

#[tokio::test]
async fn the_reason_of_a_run_that_another_hook_ended_stays() {
    // The answer to a request, or to the read of the devices of its partition.
    for (status, code) in [(404, "NotFound"), (409, "NotActive")] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let ipuof = path.join("ipuof");
        fs::create_dir(&ipuof).unwrap();
        let ended = path.join("ended");
        let proxy = ScriptedProxy::start(move |request| {
            if request.starts_with("GET") {
                return Response::problem(404, "NotFound");
            }
            fs::write(&ended, "").unwrap();
            Response::problem(status, code)
        });
        let vipu = format!("Proxy={}\nWaitInProlog=1\n", proxy.url());
        let pod64 = format!("ApiHost=vipu\nIpuofDir={}\n", ipuof.display());
        let conf = ConfFiles::parse(("vipu.conf", &vipu), &[("pod64", &pod64)]).unwrap();
        let pairs = [
            ("SLURM_SCRIPT_CONTEXT", "prolog_slurmctld"),
            ("SLURM_CLUSTER_NAME", "testbed"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_USER", "alice"),
            ("SLURM_JOB_UID", "1000"),
            ("SLURM_JOB_PARTITION", "all"),
            ("SLURM_JOB_NODELIST", "n1"),
            ("SLURM_JOB_LICENSES", "pod64:4"),
        ];
        let variables = HookEnvironment::new(pairs.map(|(name, value)| (name.into(), value.into())));
        let hook = Hook::new(fake_slurm(path, &[("scontrol", SCONTROL), ("squeue", SQUEUE)]));
        match start(&hook, &variables, Ok(conf)).await {
            Err(Refusal::Superseded(failure)) => assert_eq!(failure.0, "the job is PENDING already"),
            Err(Refusal::Requeue(failure) | Refusal::Hold(failure)) => panic!("{}", failure.0),
            Ok(()) => panic!("the job starts"),
        }
        assert!(!path.join("changes").exists(), "{code}");
        assert_eq!(proxy.requests().len(), 2, "{code}");
    }
}
