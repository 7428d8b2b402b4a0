//! Hooks that Slurm runs, whose jobs take turns between the program and a script. Each call is timed.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use ipu_test_slurm::{BED, Bed, BedOptions, Hook};

/// Runs the program for jobs with odd ids, the script for others, and records the time of the call in
/// microseconds.
const TIMED: &str = r#"#!/bin/bash
if [ $((SLURM_JOB_ID % 2)) = 1 ]; then hook=(@BED@/hooks/ipu-slurm @HOOK@); else hook=(@BED@/hooks/other-@HOOK@); fi
started=$EPOCHREALTIME
"${hook[@]}"
code=$?
ended=$EPOCHREALTIME
echo "$SLURM_JOB_ID $((${ended/./} - ${started/./}))" >>@BED@/records/@HOOK@
exit $code
"#;

/// Times of the jobs of the program, and of those of the scripts.
pub(crate) type Series = (Vec<Duration>, Vec<Duration>);

/// Adds a hook: `script` is that of every second job. `@BED@` in it is the folder of the bed.
pub(crate) fn timed_hook(options: BedOptions, hook: Hook, name: &str, script: &str) -> BedOptions {
    let fill = |text: &str| text.replace("@BED@", BED).replace("@HOOK@", name);
    options
        .text(&format!("hooks/{name}"), &fill(TIMED))
        .text(&format!("hooks/other-{name}"), &fill(script))
        .hook_program(hook, &format!("{BED}/hooks/{name}"))
}

/// Runs `2 * pairs` jobs, one after another, and returns the times of each hook. The last hook is that at
/// the end of a job.
pub(crate) fn run_jobs(bed: &Bed, pairs: usize, arguments: &[&str], hooks: &[&str]) -> Vec<Series> {
    let last = hooks.last().expect("a hook");
    for job in 1..=2 * pairs {
        let mut srun = bed.command("srun");
        let output = srun.args(arguments).arg("true").stdin(Stdio::null()).output();
        let output = output.expect("srun starts");
        assert!(output.status.success(), "{output:?}\n{}", bed.logs());
        bed.wait_until("the last hook of the job has ended", || {
            records(bed, last).contains(&format!("\n{job} "))
        });
    }
    hooks.iter().map(|hook| series(&records(bed, hook))).collect()
}

/// Returns the records of a hook, each after a line end.
fn records(bed: &Bed, hook: &str) -> String {
    let path = bed.directory().join("records").join(hook);
    format!("\n{}", fs::read_to_string(path).unwrap_or_default())
}

/// Returns the times in the order of the jobs.
fn series(records: &str) -> Series {
    let mut times: Vec<(u64, Duration)> = records
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(job, time)| {
            let time = Duration::from_micros(time.parse().expect("microseconds"));
            (job.parse().expect("a job id"), time)
        })
        .collect();
    times.sort_unstable();
    let (own, other): (Vec<_>, Vec<_>) = times.into_iter().partition(|(job, _)| job % 2 == 1);
    let times = |series: Vec<(u64, Duration)>| series.into_iter().map(|(_, time)| time).collect();
    (times(own), times(other))
}

/// Returns the sums of two hooks for each job.
pub(crate) fn sum(first: &Series, second: &Series) -> Series {
    let add = |first: &[Duration], second: &[Duration]| -> Vec<Duration> {
        assert_eq!(first.len(), second.len());
        first
            .iter()
            .zip(second)
            .map(|(first, second)| *first + *second)
            .collect()
    };
    (add(&first.0, &second.0), add(&first.1, &second.1))
}
