//! Parser for the final message of Open MPI's `mpirun`: which rank failed first, and which worker it ran on.
//!
//! The workers of a job with a launcher only host processes: when a rank fails, the launcher exits, and its
//! output has the reason. A worker is identified only with certainty: if the message names it, or if every
//! rank runs on the worker of its number.

use ipu_core::job::{Exit, JobKind, JobSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;

use crate::crd::IpuJob;

/// First failure of a rank, as `mpirun` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankFailure {
    /// Rank in `MPI_COMM_WORLD`.
    pub(super) rank: u32,
    /// Host that it ran on, as `mpirun` names it.
    pub(super) host: Option<String>,
    /// Exit of the process.
    pub(super) exit: Exit,
}

/// Names of the `mpirun` program.
const PROGRAMS: [&str; 3] = ["mpirun", "mpiexec", "orterun"];

/// Options without a value that do not affect the mapping of ranks.
const FLAGS_WITHOUT_EFFECT: [&str; 9] = [
    "allow-run-as-root",
    "display-allocation",
    "display-map",
    "merge-stderr-to-stdout",
    "nooversubscribe",
    "q",
    "report-bindings",
    "tag-output",
    "timestamp-output",
];
/// Options with one value that do not affect the mapping of ranks.
const OPTIONS_WITHOUT_EFFECT: [&str; 3] = ["bind-to", "output-filename", "x"];
/// Units that map ranks in order if each host has one slot.
const ORDERED_MAPPINGS: [&str; 6] = ["core", "hwthread", "node", "numa", "slot", "socket"];
/// Prefixes of MCA parameters that do not affect the mapping of ranks.
const PARAMETERS_WITHOUT_EFFECT: [&str; 9] = [
    "btl", "coll", "mpi_", "mtl", "oob_tcp", "opal_", "osc", "plm_rsh", "pml",
];

/// Parses the end of a launcher's log. Returns `None` if it reports no rank, and the last report if there are
/// several.
pub(super) fn read(log: &str) -> Option<RankFailure> {
    let lines: Vec<&str> = log.lines().map(str::trim).collect();
    let parse = |(at, line): (usize, &&str)| {
        signalled(line)
            .or_else(|| exited(line, lines.get(at + 1).copied().unwrap_or_default()))
            .or_else(|| aborted(line, lines.get(at + 1).copied().unwrap_or_default()))
    };
    lines.iter().enumerate().rev().find_map(parse)
}

/// `mpirun noticed that process rank 3 with PID 0 on node train-worker-3 exited on signal 11 (Segmentation
/// fault).`
fn signalled(line: &str) -> Option<RankFailure> {
    let (_, rest) = line.split_once(" noticed that process rank ")?;
    let (rank, rest) = rest.split_once(" with PID ")?;
    let (_, rest) = rest.split_once(" on node ")?;
    let (host, rest) = rest.split_once(" exited on signal ")?;
    let digits = rest.split(|other: char| !other.is_ascii_digit()).next()?;
    Some(RankFailure {
        rank: rank.parse().ok()?,
        host: Some(host.to_owned()),
        exit: Exit::Signal(digits.parse().ok().filter(|signal| *signal > 0)?),
    })
}

/// `Process name: [[5111,1],3]`, and on the next line `Exit code:    7`. Ranks of another job than the first
/// were spawned, and are not those of the launcher's command.
fn exited(line: &str, next: &str) -> Option<RankFailure> {
    let name = line.strip_prefix("Process name:")?.trim().strip_suffix(']')?;
    let (job, rank) = name.rsplit_once(',')?;
    if !job.ends_with(",1]") && !job.ends_with("@1") {
        return None;
    }
    let code = next.strip_prefix("Exit code:")?.trim().parse::<u8>().ok()?;
    Some(RankFailure {
        rank: rank.parse().ok()?,
        host: None,
        exit: exit_of_shell_code(code).filter(|exit| !exit.is_success())?,
    })
}

/// `MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD`, and on the next line `with errorcode 5.`
fn aborted(line: &str, next: &str) -> Option<RankFailure> {
    let rest = line.strip_prefix("MPI_ABORT was invoked on rank ")?;
    let (rank, communicator) = rest.split_once(" in communicator ")?;
    // Ranks of another communicator have other numbers.
    if communicator.trim_end_matches('.') != "MPI_COMM_WORLD" {
        return None;
    }
    let code = next.strip_prefix("with errorcode ")?.trim_end_matches('.');
    let code = code.parse::<i64>().ok()?.rem_euclid(256);
    let code = u8::try_from(code).ok().filter(|code| *code != 0).unwrap_or(1);
    Some(RankFailure {
        rank: rank.parse().ok()?,
        host: None,
        exit: Exit::Code(code),
    })
}

/// Shells add 128 to the number of the signal that ended a command.
const fn exit_of_shell_code(code: u8) -> Option<Exit> {
    match code {
        129..=192 => Some(Exit::Signal(code - 128)),
        code => Some(Exit::Code(code)),
    }
}

impl RankFailure {
    /// Returns the worker of `instance` that the rank ran on, if that is certain.
    pub(super) fn worker(&self, job: &IpuJob, spec: &JobSpec, instance: u32) -> Option<u32> {
        let JobKind::Launcher { command } = spec.shape() else {
            return None;
        };
        let workers = spec.workers_per_instance();
        let is_host =
            |worker: &u32| self.host.as_deref() == Some(spec.worker_name(instance, *worker).as_str());
        (0..workers).find(is_host).or_else(|| {
            let in_order =
                self.rank < workers && are_in_order(command, workers) && environment_keeps_order(job);
            in_order.then_some(self.rank)
        })
    }

    /// Returns the cause to add to the exit of the launcher, which equals that of the rank.
    pub(super) fn cause(&self) -> String {
        match &self.host {
            Some(host) => format!("rank {} on {host} failed first", self.rank),
            None => format!("rank {} failed first", self.rank),
        }
    }
}

/// Returns whether a command runs `mpirun` once, with only options that put every rank on the worker of its
/// number: the hostfile has one slot per worker.
fn are_in_order(command: &[String], workers: u32) -> bool {
    let text = command.join(" ");
    let occurrences: usize = PROGRAMS.iter().map(|program| text.matches(program).count()).sum();
    let sets_parameters = ["OMPI_MCA_", "PMIX_", "PRTE_"]
        .iter()
        .any(|prefix| text.contains(prefix));
    if occurrences != 1 || sets_parameters {
        return false;
    }
    let script;
    let args: Vec<&str> = match command {
        [shell, flag, text] if flag == "-c" && matches!(file_name(shell), "sh" | "bash") => {
            script = text.replace("\\\n", " ");
            script.split_whitespace().collect()
        }
        args => args.iter().map(String::as_str).collect(),
    };
    let is_program = |word: &&str| PROGRAMS.contains(&file_name(word));
    let Some(at) = args.iter().position(is_program) else {
        return false;
    };
    let mut args = args.into_iter().skip(at + 1);
    while let Some(word) = args.next() {
        let Some(option) = word.strip_prefix('-') else {
            let is_plain = !word.starts_with(['$', '"', '\'', '`', '(', ':']);
            // After a colon, further programs are started on other ranks.
            return is_plain && args.all(|word| word != ":");
        };
        let option = option.strip_prefix('-').unwrap_or(option);
        let is_known = match option {
            "np" | "n" | "c" => number(args.next()).is_some_and(|ranks| ranks <= workers),
            "N" | "npernode" => number(args.next()) == Some(1),
            "map-by" => args.next().is_some_and(|unit| ORDERED_MAPPINGS.contains(&unit)),
            "mca" => {
                let is_allowed = args.next().is_some_and(has_no_effect_on_mapping);
                args.next().is_some() && is_allowed
            }
            option if OPTIONS_WITHOUT_EFFECT.contains(&option) => args.next().is_some(),
            option => FLAGS_WITHOUT_EFFECT.contains(&option),
        };
        if !is_known {
            return false;
        }
    }
    false
}

/// Returns whether the environment of the launcher cannot change the mapping of ranks.
fn environment_keeps_order(job: &IpuJob) -> bool {
    let workers = job.spec.workers.as_ref();
    let template = workers.and_then(|workers| workers.template.as_ref());
    let template =
        template.and_then(|template| serde_json::from_value::<PodTemplateSpec>(template.0.clone()).ok());
    let first = template
        .and_then(|template| template.spec?.containers.into_iter().next())
        .unwrap_or_default();
    let own = job.spec.launcher.iter().flat_map(|launcher| &launcher.env);
    let own = own.map(|variable| variable.name.as_str());
    let mut all = first
        .env
        .iter()
        .flatten()
        .map(|variable| variable.name.as_str())
        .chain(own);
    let has_env_from = first.env_from.as_ref().is_some_and(|from| !from.is_empty());
    !has_env_from
        && all.all(|name| match name.strip_prefix("OMPI_MCA_") {
            Some(parameter) => has_no_effect_on_mapping(parameter),
            None => !name.starts_with("PMIX_") && !name.starts_with("PRTE_"),
        })
}

fn has_no_effect_on_mapping(parameter: &str) -> bool {
    PARAMETERS_WITHOUT_EFFECT
        .iter()
        .any(|known| parameter.starts_with(known))
}

fn number(word: Option<&str>) -> Option<u32> {
    word?.parse().ok()
}

/// Returns the name of a program without its directories.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(rank: u32, host: Option<&str>, exit: Exit) -> Option<RankFailure> {
        Some(RankFailure {
            rank,
            host: host.map(str::to_owned),
            exit,
        })
    }

    const CLOSING: &str = "--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[5111,1],3]
  Exit code:    7
--------------------------------------------------------------------------
";

    #[test]
    fn the_first_failed_rank_is_parsed_with_its_exit() {
        assert_eq!(read(CLOSING), failure(3, None, Exit::Code(7)));
        let shell = CLOSING.replace(":    7", ":    139");
        assert_eq!(read(&shell), failure(3, None, Exit::Signal(11)));
        let newer = CLOSING.replace("[[5111,1],3]", "[prterun-host-77@1,3]");
        assert_eq!(read(&newer), failure(3, None, Exit::Code(7)));
        let signal = "mpirun noticed that process rank 5 with PID 0 on node train-worker-5 exited on signal 11 (Segmentation fault).";
        assert_eq!(read(signal), failure(5, Some("train-worker-5"), Exit::Signal(11)));
        let abort = "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 5.\n\nNOTE: invoking";
        assert_eq!(read(abort), failure(2, None, Exit::Code(5)));
    }

    #[test]
    fn messages_without_a_rank_of_the_job_are_ignored() {
        for text in [
            "",
            "no data",
            "Process name: [[5111,1],3]",
            "Process name: [[5111,1],3]\nExit code: 0",
            "Process name: [[5111,2],3]\nExit code: 7",
            "Process name: [[5111,1],-3]\nExit code: 7",
            "MPI_ABORT was invoked on rank 2 in communicator MPI COMMUNICATOR 4 DUP FROM 0\nwith errorcode 5.",
            "mpirun noticed that process rank x with PID 0 on node a exited on signal 11",
            "mpirun noticed that process rank 1 with PID 0 on node a exited on signal 0",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    fn args(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn script(text: &str) -> Vec<String> {
        vec!["/bin/sh".to_owned(), "-c".to_owned(), text.to_owned()]
    }

    #[test]
    fn ranks_are_in_order_by_default() {
        for command in [
            args("mpirun ring"),
            args("/usr/bin/mpirun --allow-run-as-root --bind-to none -np 8 python3 train.py --hostfile x"),
            args("mpiexec -n 4 -x PATH --mca btl_tcp_if_include eth0 --map-by node ring"),
            script("cd /data && exec mpirun -np 8 --tag-output \\\n  python3 train.py"),
        ] {
            assert!(are_in_order(&command, 8), "{command:?}");
        }
    }

    #[test]
    fn ranks_have_no_known_worker_under_options_that_map_them_or_are_unknown() {
        for command in [
            args("python3 launch.py"),
            args("mpirun"),
            args("mpirun -np 16 --oversubscribe ring"),
            args("mpirun -np 16 ring"),
            args("mpirun --host train-worker-1,train-worker-0 ring"),
            args("mpirun --hostfile /my/hosts ring"),
            args("mpirun --rankfile ranks ring"),
            args("mpirun --map-by ppr:2:node ring"),
            args("mpirun -N 2 ring"),
            args("mpirun --mca rmaps seq ring"),
            args("mpirun -np 1 master : -np 7 ring"),
            args("mpirun --some-option ring"),
            script("mpirun $OPTIONS ring"),
            script("mpirun -np $N ring"),
            script("mpirun ring || mpirun ring"),
            script("export OMPI_MCA_rmaps=seq; mpirun ring"),
        ] {
            assert!(!are_in_order(&command, 8), "{command:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_log_can_be_parsed(log in ".*\\PC*", tail in ".{0,20}") {
            let _ = read(&log);
            for line in ["Process name: ", "MPI_ABORT was invoked on rank ", "mpirun noticed that process rank "] {
                let _ = read(&format!("{log}\n{line}{tail}\nExit code: {tail}"));
            }
        }
    }
}
