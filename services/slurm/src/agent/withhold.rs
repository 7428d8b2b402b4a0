//! The reservations that withhold licenses of IPUs which others hold.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use ipu_proxy_client::ControllerStatus;
use ipu_slurm::conf::ModelConf;
use ipu_slurm::{LicenseCounts, Reservation, reservation_command, withheld};

use super::context::{Context, now};
use crate::failure::Failure;
use crate::report;
use crate::safe_file;
use crate::slurm_commands::SlurmError;

#[cfg(test)]
mod two_models;

/// The message of `scontrol` for a reservation that does not exist.
const UNKNOWN_RESERVATION: &str = "Requested reservation is invalid";

/// Description of the metrics, in the text format of Prometheus.
const METRICS: &str = "\
# HELP ipu_slurm_withheld_licenses Licenses that the agent withholds, because others hold their IPUs.
# TYPE ipu_slurm_withheld_licenses gauge
";

/// Updates the reservation of each model, and the file with the metrics. Returns a line for each change.
///
/// # Errors
///
/// All problems. One with a model keeps no other from its reservation.
pub(super) async fn withhold(context: &Context, metrics_file: Option<&Path>) -> Result<Vec<String>, Failure> {
    // First the free IPUs: a grant in between is then counted twice, which withholds too few for a moment,
    // instead of none at all.
    let controllers = context.proxy.controllers().await?.controllers;
    let partitions = context.proxy.partitions().await?;
    let licenses = context.slurm.licenses().await?;
    let reservations = context.slurm.reservations().await?;
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    let mut metrics = METRICS.to_owned();
    for (name, model) in context.conf.models() {
        let license = licenses
            .iter()
            .find(|license| license.name == name && !license.remote);
        let (Some(license), Some(free)) = (license, free_ipus(&controllers, model)) else {
            // Without an answer of the controller, the last reservation stays.
            continue;
        };
        let address = model.api_address();
        let held_here: u32 = partitions
            .iter()
            .filter(|partition| partition.state.holds() && context.is_ours(partition))
            .filter(|partition| {
                let controller = partition.controller.as_ref();
                controller.is_some_and(|controller| controller.name.as_str() == address)
            })
            .map(|partition| partition.size)
            .sum();
        let wanted = withheld(license.total, free, held_by_jobs(license, held_here));
        let _ = writeln!(
            metrics,
            "ipu_slurm_withheld_licenses{{license=\"{name}\"}} {wanted}"
        );
        match update(context, name, wanted, &reservations).await {
            Ok(true) => lines.push(format!(
                "{wanted} of {} licenses {name} are withheld",
                license.total
            )),
            Ok(false) => {}
            Err(failure) => problems.push(failure.0),
        }
    }
    if let Some(file) = metrics_file
        && let Err(error) = write(file, &metrics)
    {
        problems.push(format!("cannot write {}: {error}", file.display()));
    }
    if problems.is_empty() {
        return Ok(lines);
    }
    for line in &lines {
        report::note(line);
    }
    Err(Failure(problems.join("; ")))
}

/// Replaces a file: a reader sees the old metrics or the new ones.
fn write(file: &Path, metrics: &str) -> io::Result<()> {
    let name = file.file_name().and_then(OsStr::to_str);
    let (Some(directory), Some(name)) = (file.parent(), name) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    safe_file::replace(directory, name, metrics, false)
}

/// Updates the reservation of a model. Returns whether it has changed.
async fn update(
    context: &Context,
    model: &str,
    wanted: u32,
    reservations: &[Reservation],
) -> Result<bool, Failure> {
    let Some(arguments) = reservation_command(model, wanted, reservations, now())? else {
        return Ok(false);
    };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match context.slurm.scontrol(&arguments).await {
        Ok(()) => Ok(true),
        // Another agent, or `gc` of an administrator, has deleted it.
        Err(SlurmError::Failed { message, .. }) if wanted == 0 && message.contains(UNKNOWN_RESERVATION) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns how many of the IPUs that this cluster holds belong to licenses of jobs. The host map, and a run
/// that has ended, hold IPUs without a license: another job with it would find none.
fn held_by_jobs(license: &LicenseCounts, held_here: u32) -> u32 {
    held_here.min(license.used)
}

/// Returns the free IPUs of a model; none if its controller does not answer.
fn free_ipus(controllers: &[ControllerStatus], model: &ModelConf) -> Option<u32> {
    controller_of(controllers, model)?.free
}

/// Returns the controller of a model, if it answers.
pub(super) fn controller_of<'a>(
    controllers: &'a [ControllerStatus],
    model: &ModelConf,
) -> Option<&'a ControllerStatus> {
    let address = model.api_address();
    controllers
        .iter()
        .find(|status| status.controller.name.as_str() == address)
        .filter(|status| status.available)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipus_that_are_held_without_a_license_are_withheld() {
        let wanted = |used: u32, free: u32, held_here: u32| {
            let line = format!("LicenseName=pod64 Total=64 Used={used} Free=0 Reserved=0 Remote=no");
            let counts = LicenseCounts::parse_list(&line).remove(0);
            withheld(counts.total, free, held_by_jobs(&counts, held_here))
        };
        assert_eq!(wanted(16, 48, 16), 0);
        // The host map holds 32 IPUs.
        assert_eq!(wanted(0, 32, 32), 32);
        assert_eq!(wanted(16, 16, 48), 32);
        // A job that starts has its license before its IPUs.
        assert_eq!(wanted(16, 64, 0), 0);
    }
}
