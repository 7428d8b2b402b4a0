//! Output of Slurm's commands.

use ipu_slurm::{
    LicenseCounts, Reservation, RunKey, RunList, SlurmctldConfig, parse_allocated_gres, parse_squeue_job,
};

use crate::error_messages::{check_error, text};

/// Parses the input as output of `scontrol` and `squeue`, and as the uid of a run.
///
/// # Panics
///
/// If a job is read from a text that does not contain its values, or a message is too long.
pub fn slurm_output(bytes: &[u8]) {
    let text = &text(bytes);
    for license in LicenseCounts::parse_list(text) {
        assert!(text.contains(&license.name));
    }
    if let Err(error) = SlurmctldConfig::parse(text) {
        check_error(&error, 100);
    }
    if let Err(error) = Reservation::parse_list(text) {
        check_error(&error, 100);
    }
    // A number of the input, as a job that may be in it.
    let digits = text.split(|c: char| !c.is_ascii_digit());
    let ids = digits.filter_map(|digits| digits.parse().ok());
    for id in ids.take(4) {
        match parse_squeue_job(text, id) {
            Ok(job) => assert!(text.contains(&format!("|{}|{}|", job.state, job.reason))),
            Err(error) => check_error(&error, 100),
        }
        if let Err(error) = parse_allocated_gres(text, id) {
            check_error(&error, 100);
        }
    }
    match RunList::parse(text) {
        Ok(runs) => {
            assert_eq!(runs.len(), text.lines().count());
            if let Some(cut) = text.strip_suffix("|\n") {
                assert!(RunList::parse(cut).is_err());
            }
        }
        Err(error) => check_error(&error, 100),
    }
    match RunKey::from_uid(text) {
        Ok(run) => assert_eq!(run.to_string(), *text),
        Err(error) => check_error(&error, 100),
    }
}
