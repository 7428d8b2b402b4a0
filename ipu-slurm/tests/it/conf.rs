//! Configuration files: golden files, cases and properties.

mod cases;
mod golden;
mod lists;
mod properties;
mod slurm_conf;

use ipu_slurm::conf::ConfError;

/// Returns the errors as text, one a line.
fn shown(errors: &[ConfError]) -> String {
    errors.iter().map(|error| format!("{error}\n")).collect()
}
