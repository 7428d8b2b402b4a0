//! `ipuctl render`: configuration files for IPUs without host network (RDMA guide).

mod macvlan;
mod memlock;

use crate::cli::{Format, Render};
use crate::exit_code::{Code, Failure};
use crate::output::Output;

/// Prints a configuration file.
pub(crate) fn run(command: &Render, format: Format, output: &Output) -> Result<Code, Failure> {
    let text = match command {
        Render::Macvlan(arguments) => macvlan::render(arguments, format, output)?,
        Render::Memlock(arguments) => memlock::render(arguments.runtime, format)?,
    };
    output.result(&text);
    Ok(Code::Done)
}
