//! What is planted, and how.

use std::fmt;
use std::path::Path;

use ipu_testkit::Random;
use serde_json::{Value, json};

/// A shell, Open MPI and the launcher.
pub(super) const IMAGE: &str = "local/planted:1";

const WORKERS: u32 = 8;

/// Holds one end of a pipe while it lives, and fails when all others hold the other.
const VICTIM: &str = r#"mkfifo /shared/life; exec 9>/shared/life
until [ "$(ls /shared | grep -c here-)" = 7 ]; do sleep 0.1; done
"#;

/// Waits for the victim's end, whatever it is, and fails at once.
const OTHERS: &str = r#"until [ -p /shared/life ]; do sleep 0.1; done
exec 9</shared/life; touch "/shared/here-$me"; read line <&9
NOTICES
echo "worker $me has lost another"; exit 1
"#;

/// A failure in a job.
#[derive(Clone, Debug)]
pub(super) struct Planted {
    /// The name of the job.
    pub(super) name: String,
    shape: Shape,
    victim: u32,
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Eight workers, of which seven fail as soon as one does.
    Workers,
    /// Eight workers that serve a launcher.
    Launcher,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// It ends with this code, and says why.
    Code(u8),
    /// It ends with the code of those that follow, and says why; they take a tenth of a second to notice, as what has to find
    /// out that a connection is broken. Nothing but the logs tells who was first.
    Alike,
    /// The same, without a word.
    Mute(u8),
    /// It is ended by this signal.
    Signal(u8),
    /// It takes more memory than it may.
    Memory,
    /// Its init container ends with this code.
    Init(u8),
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {:?}", self.shape, self.victim, self.cause)
    }
}

/// So many failures: both shapes in turn, and in each all causes in turn; victims and codes are drawn.
pub(super) fn planted(many: usize, seed: u64) -> Vec<Planted> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for number in 0..many {
        let (shape, turn) = match number % 2 {
            0 => (Shape::Workers, number / 2 % 7),
            _ => (Shape::Launcher, number / 2 % 4),
        };
        // The code of those that follow is 1.
        let code = u8::try_from(2 + random.below(90)).unwrap();
        let cause = match (shape, turn) {
            (Shape::Workers, 0) => Cause::Memory,
            (Shape::Workers, 1) => Cause::Mute(code),
            (Shape::Workers, 2) => Cause::Alike,
            (_, 3) => Cause::Signal(6),
            (Shape::Workers, 4) => Cause::Init(code),
            (Shape::Workers, 5) => Cause::Signal(11),
            (Shape::Launcher, 1) => Cause::Signal(11),
            (Shape::Launcher, 2) => Cause::Signal(9),
            _ => Cause::Code(code),
        };
        all.push(Planted {
            name: format!("planted-{number}"),
            shape,
            victim: random.below(WORKERS),
            cause,
        });
    }
    all
}

impl Planted {
    /// The job; its processes meet in a folder of this machine within `storage`.
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
        let fails = self.fails();
        let notices = if self.cause == Cause::Alike {
            "sleep 0.1"
        } else {
            ""
        };
        let others = OTHERS.replace("NOTICES", notices);
        let cascade = format!(
            "me=$(hostname); me=${{me##*-}}\nif [ $me = {victim} ]; then\n{VICTIM}{fails}\nfi\n{others}"
        );
        let mut launcher = None;
        match (self.shape, self.cause) {
            (Shape::Workers, Cause::Init(_)) => {
                let mut init = worker.clone();
                init["name"] = "init".into();
                let only =
                    format!("me=$(hostname)\nif [ ${{me##*-}} = {victim} ]; then\n{VICTIM}{fails}\nfi\n");
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
                let script =
                    format!("if [ $OMPI_COMM_WORLD_RANK = {victim} ]; then\n{fails}\nfi\nexec sleep 3600\n");
                let words = [
                    "mpirun",
                    "--allow-run-as-root",
                    "--bind-to",
                    "none",
                    "-np",
                    "8",
                    "/bin/sh",
                    "-c",
                ];
                let command = [&words[..], &[script.as_str()]].concat();
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

    /// The last lines of the victim.
    fn fails(&self) -> String {
        match self.cause {
            Cause::Code(code) | Cause::Init(code) => format!("echo 'no data'; exit {code}"),
            Cause::Alike => "echo 'no data'; exit 1".to_owned(),
            Cause::Mute(code) => format!("exit {code}"),
            // The first process of a container ignores signals that it sends to itself. Kubernetes makes one `$` of two.
            Cause::Signal(signal) => format!("sh -c 'kill -{signal} $$$$'; exit $?"),
            Cause::Memory => "exec tail /dev/zero".to_owned(),
        }
    }

    /// Whether a status names the victim and the cause.
    pub(super) fn is_named(&self, status: &Value) -> bool {
        let failure = &status["firstFailure"];
        let victim = format!("{}-worker-{}", self.name, self.victim);
        let reason = failure["reason"].as_str().unwrap_or_default();
        let (code, signal, why) = match self.cause {
            Cause::Code(code) | Cause::Mute(code) | Cause::Init(code) => (code, None, "exit code"),
            Cause::Alike => (1, None, "exit code 1"),
            Cause::Signal(signal) => (128 + signal, Some(signal), "signal"),
            Cause::Memory => (137, Some(9), "OOMKilled"),
        };
        let log = failure["log"].as_str().unwrap_or_default();
        // Asked of init containers alone: of launchers it is their log, and some causes leave no words.
        let tells = !matches!(self.cause, Cause::Init(_)) || log.contains("no data");
        failure["name"] == victim
            && failure["worker"] == self.victim
            && failure["kind"] == "Worker"
            && failure["exitCode"] == code
            && failure["signal"] == json!(signal)
            && reason.contains(why)
            && tells
    }

    /// Whether the launcher is named because `mpirun` has not said which rank it was, which happens.
    pub(super) fn is_untold(&self, status: &Value) -> bool {
        let failure = &status["firstFailure"];
        let log = failure["log"].as_str().unwrap_or_default();
        let silent = !log.contains("Process name:") && !log.contains("noticed that process rank");
        self.shape == Shape::Launcher && failure["kind"] == "Launcher" && silent
    }
}
