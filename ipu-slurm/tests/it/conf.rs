//! Configuration files: golden files, cases and properties.

mod cases;
mod cluster_name;
mod golden;
mod lists;
mod properties;

use ipu_slurm::conf::ConfError;

/// Returns the errors as text, one a line.
fn shown(errors: &[ConfError]) -> String {
    errors.iter().map(|error| format!("{error}\n")).collect()
}
