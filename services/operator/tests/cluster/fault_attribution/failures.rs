//! Injected failures.

use std::fmt;
use std::path::Path;

use ipu_testkit::Random;
use serde_json::{Value, json};

/// Image with a shell, Open MPI and the launcher.
pub(super) const IMAGE: &str = "local/planted:1";

const WORKERS: u32 = 8;

/// Script of the victim: holds the write end of a pipe, and fails once all others hold the read end.
const VICTIM: &str = r#"mkfifo /shared/life; exec 9>/shared/life
until [ "$(ls /shared | grep -c here-)" = 7 ]; do sleep 0.1; done
"#;

/// Script of the other workers: waits for the victim's exit, and fails at once.
const OTHERS: &str = r#"until [ -p /shared/life ]; do sleep 0.1; done
exec 9</shared/life; touch "/shared/here-$me"; read line <&9
NOTICES
echo "worker $me has lost another"; exit 1
"#;

/// Failure injected into a job.
#[derive(Clone, Debug)]
pub(super) struct InjectedFailure {
    /// Name of the job.
    pub(super) name: String,
    shape: Shape,
    victim: u32,
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Eight workers; seven fail as soon as one does.
    Workers,
    /// Eight workers with a launcher.
    Launcher,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Exits with this code and prints a reason.
    Code(u8),
    /// Exits with the same code as the others and prints a reason. Only the logs identify the first failure.
    SameCode,
    /// Exits with this code and prints nothing.
    Silent(u8),
    /// Killed by this signal.
    Signal(u8),
    /// Exceeds its memory limit.
    Memory,
    /// Its init container exits with this code.
    Init(u8),
}

impl fmt::Display for InjectedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {:?}", self.shape, self.victim, self.cause)
    }
}

/// Creates `count` failures: alternating shapes, all causes in rotation, random victims and codes.
pub(super) fn inject(count: usize, seed: u64) -> Vec<InjectedFailure> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for number in 0..count {
        let (shape, cause_index) = match number % 2 {
            0 => (Shape::Workers, number / 2 % 7),
            _ => (Shape::Launcher, number / 2 % 4),
        };
        // The other workers exit with code 1.
        let code = u8::try_from(2 + random.below(90)).unwrap();
        let cause = match (shape, cause_index) {
            (Shape::Workers, 0) => Cause::Memory,
            (Shape::Workers, 1) => Cause::Silent(code),
            (Shape::Workers, 2) => Cause::SameCode,
            (_, 3) => Cause::Signal(6),
            (Shape::Workers, 4) => Cause::Init(code),
            (Shape::Workers, 5) => Cause::Signal(11),
            (Shape::Launcher, 1) => Cause::Signal(11),
            (Shape::Launcher, 2) => Cause::Signal(9),
            _ => Cause::Code(code),
        };
        all.push(InjectedFailure {
            name: format!("planted-{number}"),
            shape,
            victim: random.below(WORKERS),
            cause,
        });
    }
    all
}

impl InjectedFailure {
    /// Returns the job; its processes share a folder of this machine within `storage`.
    pub(super) fn job(&self, storage: &Path) -> Value {
        let (name, victim) = (&self.name, self.victim);
        let mounts = json!([{"name": "shared", "mountPath": "/shared"}]);
        let mut worker = json!({
            "name": "worker",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "volumeMounts": mounts,
        });
        let mut pod = json!({
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "shared", "hostPath": {"path": storage.join(name), "type": "DirectoryOrCreate"}}],
        });
        let failure_script = self.failure_script();
        // Where the time of the end decides, the others take a second to notice, as for a broken connection.
        // The kernel ends a process for its memory some time before the runtime reports that.
        let notice_delay = match self.cause {
            Cause::SameCode | Cause::Memory => "sleep 1",
            _ => "",
        };
        let others = OTHERS.replace("NOTICES", notice_delay);
        let cascade = format!(
            "me=$(hostname); me=${{me##*-}}\nif [ $me = {victim} ]; then\n{VICTIM}{failure_script}\nfi\n{others}"
        );
        let mut launcher = None;
        match (self.shape, self.cause) {
            (Shape::Workers, Cause::Init(_)) => {
                let mut init = worker.clone();
                init["name"] = "init".into();
                let only = format!(
                    "me=$(hostname)\nif [ ${{me##*-}} = {victim} ]; then\n{VICTIM}{failure_script}\nfi\n"
                );
                init["command"] = json!(["/bin/sh", "-c", only]);
                pod["initContainers"] = json!([init]);
                worker["command"] = json!(["/bin/sh", "-c", cascade]);
            }
            (Shape::Workers, cause) => {
                worker["command"] = json!(["/bin/sh", "-c", cascade]);
                if cause == Cause::Memory {
                    worker["resources"] = json!({"limits": {"memory": "48Mi"}});
                }
            }
            (Shape::Launcher, _) => {
                let script = format!(
                    "if [ $OMPI_COMM_WORLD_RANK = {victim} ]; then\n{failure_script}\nfi\nexec sleep 3600\n"
                );
                let arguments = [
                    "mpirun",
                    "--allow-run-as-root",
                    "--bind-to",
                    "none",
                    "-np",
                    "8",
                    "/bin/sh",
                    "-c",
                ];
                let command = [&arguments[..], &[script.as_str()]].concat();
                launcher = Some(json!({"command": command}));
            }
        }
        pod["containers"] = json!([worker]);
        let mut spec = json!({
            "jobInstances": 1,
            "ipusPerJobInstance": WORKERS.to_string(),
            "workersPerJobInstance": WORKERS.to_string(),
            "cleanPodPolicy": "None",
            "workers": {"template": {"spec": pod}},
        });
        if let Some(launcher) = launcher {
            spec["launcher"] = launcher;
        }
        json!({
            "apiVersion": "graphcore.ai/v1alpha1",
            "kind": "IPUJob",
            "metadata": {"name": name},
            "spec": spec,
        })
    }

    /// Returns the last lines of the victim's script.
    fn failure_script(&self) -> String {
        match self.cause {
            Cause::Code(code) | Cause::Init(code) => format!("echo 'no data'; exit {code}"),
            Cause::SameCode => "echo 'no data'; exit 1".to_owned(),
            Cause::Silent(code) => format!("exit {code}"),
            // PID 1 of a container ignores signals it sends to itself. Kubernetes replaces `$$` with `$`.
            Cause::Signal(signal) => format!("sh -c 'kill -{signal} $$$$'; exit $?"),
            Cause::Memory => "exec tail /dev/zero".to_owned(),
        }
    }

    /// Returns whether a status names the victim and the cause.
    pub(super) fn is_named(&self, status: &Value) -> bool {
        let failure = &status["firstFailure"];
        let victim = format!("{}-worker-{}", self.name, self.victim);
        let reason = failure["reason"].as_str().unwrap_or_default();
        let (code, signal, reason_part) = match self.cause {
            Cause::Code(code) | Cause::Silent(code) | Cause::Init(code) => (code, None, "exit code"),
            Cause::SameCode => (1, None, "exit code 1"),
            Cause::Signal(signal) => (128 + signal, Some(signal), "signal"),
            Cause::Memory => (137, Some(9), "OOMKilled"),
        };
        let log = failure["log"].as_str().unwrap_or_default();
        // Checked for init containers only: a launcher has its own log, and some causes print nothing.
        let log_matches = !matches!(self.cause, Cause::Init(_)) || log.contains("no data");
        failure["name"] == victim
            && failure["worker"] == self.victim
            && failure["kind"] == "Worker"
            && failure["exitCode"] == code
            && failure["signal"] == json!(signal)
            && reason.contains(reason_part)
            && log_matches
    }

    /// Returns whether the launcher is named because `mpirun` did not print the failed rank.
    pub(super) fn is_unreported(&self, status: &Value) -> bool {
        let failure = &status["firstFailure"];
        let log = failure["log"].as_str().unwrap_or_default();
        let names_no_rank = !log.contains("Process name:") && !log.contains("noticed that process rank");
        self.shape == Shape::Launcher && failure["kind"] == "Launcher" && names_no_rank
    }
}
