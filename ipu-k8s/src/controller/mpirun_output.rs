//! What the closing words of Open MPI's `mpirun` tell of the rank that failed first, and which worker that rank ran on.
//!
//! Workers of a job with a launcher only serve: when a rank fails, it is the launcher that ends, and its output says why.
//! A worker is named only where that is certain: if the words name it, or if every rank is on the worker of its number.

use ipu_core::{Exit, JobKind, JobSpec};
use serde_json::Value;

use crate::crd::IpuJob;

/// What was told of the rank that failed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankFailure {
    /// Its number in `MPI_COMM_WORLD`.
    pub(super) rank: u32,
    /// The host that it ran on, as `mpirun` calls it.
    pub(super) host: Option<String>,
    /// How it ended.
    pub(super) exit: Exit,
}

/// How `mpirun` may be called.
const PROGRAMS: [&str; 3] = ["mpirun", "mpiexec", "orterun"];

/// Options that say nothing of where ranks go.
const ALONE: [&str; 9] = [
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
/// The same with one value.
const WITH_VALUE: [&str; 3] = ["bind-to", "output-filename", "x"];
/// Units by which ranks are mapped in order, if each host has one slot.
const MAPPED_BY: [&str; 6] = ["core", "hwthread", "node", "numa", "slot", "socket"];
/// Open MPI's parameters that say nothing of where ranks go, by their first letters.
const HARMLESS: [&str; 9] = [
    "btl", "coll", "mpi_", "mtl", "oob_tcp", "opal_", "osc", "plm_rsh", "pml",
];

/// Reads the end of a launcher's log; none if it tells of no rank. Of several tales, the last one counts.
pub(super) fn read(log: &str) -> Option<RankFailure> {
    let lines: Vec<&str> = log.lines().map(str::trim).collect();
    let told = |(at, line): (usize, &&str)| {
        signalled(line)
            .or_else(|| exited(line, lines.get(at + 1).copied().unwrap_or_default()))
            .or_else(|| aborted(line, lines.get(at + 1).copied().unwrap_or_default()))
    };
    lines.iter().enumerate().rev().find_map(told)
}

/// `mpirun noticed that process rank 3 with PID 0 on node train-worker-3 exited on signal 11 (Segmentation fault).`
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

/// `Process name: [[5111,1],3]`, and on the next line `Exit code:    7`. Ranks of another job than the first are none of
/// those that the launcher was asked for.
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
        exit: of_shell(code).filter(|exit| !exit.is_success())?,
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

/// A shell adds 128 to the number of the signal that ended what it ran.
const fn of_shell(code: u8) -> Option<Exit> {
    match code {
        129..=192 => Some(Exit::Signal(code - 128)),
        code => Some(Exit::Code(code)),
    }
}

impl RankFailure {
    /// The worker of `instance` that the rank ran on, where that is certain.
    pub(super) fn worker(&self, job: &IpuJob, spec: &JobSpec, instance: u32) -> Option<u32> {
        let JobKind::Launcher { command } = spec.shape() else {
            return None;
        };
        let workers = spec.workers_per_instance();
        let is_host =
            |worker: &u32| self.host.as_deref() == Some(spec.worker_name(instance, *worker).as_str());
        (0..workers).find(is_host).or_else(|| {
            let in_order = self.rank < workers && are_in_order(command, workers) && leaves_order(job);
            in_order.then_some(self.rank)
        })
    }

    /// What is said of it beside the end of the launcher, which is the same.
    pub(super) fn cause(&self) -> String {
        match &self.host {
            Some(host) => format!("as rank {} on {host} did first", self.rank),
            None => format!("as rank {} did first", self.rank),
        }
    }
}

/// Whether a command runs `mpirun` once, with nothing but options under which every rank is on the worker of its number:
/// the hostfile has one slot for each.
fn are_in_order(command: &[String], workers: u32) -> bool {
    let text = command.join(" ");
    let times: usize = PROGRAMS.iter().map(|program| text.matches(program).count()).sum();
    let tells_more = ["OMPI_MCA_", "PMIX_", "PRTE_"]
        .iter()
        .any(|prefix| text.contains(prefix));
    if times != 1 || tells_more {
        return false;
    }
    let script;
    let words: Vec<&str> = match command {
        [shell, flag, text] if flag == "-c" && matches!(last_of(shell), "sh" | "bash") => {
            script = text.replace("\\\n", " ");
            script.split_whitespace().collect()
        }
        words => words.iter().map(String::as_str).collect(),
    };
    let is_program = |word: &&str| PROGRAMS.contains(&last_of(word));
    let Some(at) = words.iter().position(is_program) else {
        return false;
    };
    let mut words = words.into_iter().skip(at + 1);
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix('-') else {
            let is_plain = !word.starts_with(['$', '"', '\'', '`', '(', ':']);
            // After a colon, other programs are started elsewhere.
            return is_plain && words.all(|word| word != ":");
        };
        let option = option.strip_prefix('-').unwrap_or(option);
        let known = match option {
            "np" | "n" | "c" => number(words.next()).is_some_and(|ranks| ranks <= workers),
            "N" | "npernode" => number(words.next()) == Some(1),
            "map-by" => words.next().is_some_and(|unit| MAPPED_BY.contains(&unit)),
            "mca" => {
                let harmless = words.next().is_some_and(is_harmless);
                words.next().is_some() && harmless
            }
            option if WITH_VALUE.contains(&option) => words.next().is_some(),
            option => ALONE.contains(&option),
        };
        if !known {
            return false;
        }
    }
    false
}

/// Whether nothing in the environment of the launcher may say otherwise.
fn leaves_order(job: &IpuJob) -> bool {
    let template = job
        .spec
        .workers
        .as_ref()
        .and_then(|workers| workers.template.as_ref());
    let first = template.map_or(&Value::Null, |template| &template.0["spec"]["containers"][0]);
    let theirs = first["env"].as_array().into_iter().flatten();
    let theirs = theirs.map(|variable| variable["name"].as_str().unwrap_or_default());
    let own = job.spec.launcher.iter().flat_map(|launcher| &launcher.env);
    let mut all = theirs.chain(own.map(|variable| variable.name.as_str()));
    let unknown = first["envFrom"].as_array().is_some_and(|from| !from.is_empty());
    !unknown
        && all.all(|name| match name.strip_prefix("OMPI_MCA_") {
            Some(parameter) => is_harmless(parameter),
            None => !name.starts_with("PMIX_") && !name.starts_with("PRTE_"),
        })
}

fn is_harmless(parameter: &str) -> bool {
    HARMLESS.iter().any(|known| parameter.starts_with(known))
}

fn number(word: Option<&str>) -> Option<u32> {
    word?.parse().ok()
}

/// The name of a program without its folders.
fn last_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rank: u32, host: Option<&str>, exit: Exit) -> Option<RankFailure> {
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
    fn the_rank_that_failed_first_is_read_with_its_end() {
        assert_eq!(read(CLOSING), told(3, None, Exit::Code(7)));
        let shell = CLOSING.replace(":    7", ":    139");
        assert_eq!(read(&shell), told(3, None, Exit::Signal(11)));
        let newer = CLOSING.replace("[[5111,1],3]", "[prterun-host-77@1,3]");
        assert_eq!(read(&newer), told(3, None, Exit::Code(7)));
        let signal = "mpirun noticed that process rank 5 with PID 0 on node train-worker-5 exited on signal 11 (Segmentation fault).";
        assert_eq!(read(signal), told(5, Some("train-worker-5"), Exit::Signal(11)));
        let abort = "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 5.\n\nNOTE: invoking";
        assert_eq!(read(abort), told(2, None, Exit::Code(5)));
    }

    #[test]
    fn what_tells_of_no_rank_of_the_job_is_not_read() {
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

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn script(text: &str) -> Vec<String> {
        vec!["/bin/sh".to_owned(), "-c".to_owned(), text.to_owned()]
    }

    #[test]
    fn ranks_are_in_order_if_nothing_says_otherwise() {
        for command in [
            words("mpirun ring"),
            words("/usr/bin/mpirun --allow-run-as-root --bind-to none -np 8 python3 train.py --hostfile x"),
            words("mpiexec -n 4 -x PATH --mca btl_tcp_if_include eth0 --map-by node ring"),
            script("cd /data && exec mpirun -np 8 --tag-output \\\n  python3 train.py"),
        ] {
            assert!(are_in_order(&command, 8), "{command:?}");
        }
    }

    #[test]
    fn ranks_may_be_anywhere_under_options_that_move_them_or_that_are_not_known() {
        for command in [
            words("python3 launch.py"),
            words("mpirun"),
            words("mpirun -np 16 --oversubscribe ring"),
            words("mpirun -np 16 ring"),
            words("mpirun --host train-worker-1,train-worker-0 ring"),
            words("mpirun --hostfile /my/hosts ring"),
            words("mpirun --rankfile ranks ring"),
            words("mpirun --map-by ppr:2:node ring"),
            words("mpirun -N 2 ring"),
            words("mpirun --mca rmaps seq ring"),
            words("mpirun -np 1 master : -np 7 ring"),
            words("mpirun --some-option ring"),
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
        fn anything_can_be_read(log in ".*\\PC*", tail in ".{0,20}") {
            let _ = read(&log);
            for line in ["Process name: ", "MPI_ABORT was invoked on rank ", "mpirun noticed that process rank "] {
                let _ = read(&format!("{log}\n{line}{tail}\nExit code: {tail}"));
            }
        }
    }
}
