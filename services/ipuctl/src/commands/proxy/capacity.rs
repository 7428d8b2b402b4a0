//! What is used, free, and mended.

use ipu_proxy_client::ProxyClient;

use super::{failure, unsupported};
use crate::cli::{Format, Query};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table::{Table, render};

/// IPUs by namespace.
pub(super) async fn stats(proxy: &ProxyClient, format: Format, output: &Output) -> Result<Code, Failure> {
    let stats = proxy.stats().await.map_err(failure)?;
    let table = || {
        let mut table = Table::new(&["NAMESPACE", "USED", "AVAILABLE"]);
        for (namespace, usage) in &stats.0 {
            let numbers = [usage.used.to_string(), usage.available.to_string()];
            table.row(std::iter::once(namespace.clone()).chain(numbers));
        }
        table.text()
    };
    output.result(&render(format, &stats, table)?);
    Ok(Code::Done)
}

/// How many partitions of a size fit; the exit code says whether one does.
pub(super) async fn query(
    arguments: Query,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    if arguments.allocation.is_some() {
        return Err(unsupported(
            "query --allocation",
            "leave it out, or ask a controller with --vipu",
        ));
    }
    let size = arguments.size.get();
    let fit = proxy.query(size).await.map_err(failure)?;
    if !fit.message.is_empty() && format == Format::Table {
        output.warn(&fit.message);
    }
    let text = || format!("{} partitions of {size} IPUs fit\n", fit.num_of_partitions);
    output.result(&render(format, &fit, text)?);
    Ok(match (fit.available, fit.num_of_partitions) {
        (false, _) => Code::Unavailable,
        (true, 0) => Code::NoRoom,
        _ => Code::Done,
    })
}

/// The controllers and how they are; the exit code says whether all answer.
pub(super) async fn controllers(
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let list = proxy.controllers().await.map_err(failure)?;
    let table = || {
        let mut table = Table::new(&["CONTROLLER", "STATE", "FREE", "LARGEST", "VERSION", "ERROR"]);
        let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
        for status in &list.controllers {
            let state = match (status.available, status.draining) {
                (true, false) => "available",
                (true, true) => "draining",
                (false, _) => "silent",
            };
            table.row([
                status.controller.name.to_string(),
                state.to_owned(),
                number(status.free),
                number(status.largest_block),
                status.version.clone().unwrap_or_default(),
                status.error.clone().unwrap_or_default(),
            ]);
        }
        table.text()
    };
    output.result(&render(format, &list, table)?);
    let silent = list.controllers.iter().any(|status| !status.available);
    Ok(if silent { Code::Unavailable } else { Code::Done })
}

/// Has the ledger repaired now; the exit code says whether nothing is left to be gone on with.
pub(super) async fn repair(proxy: &ProxyClient, format: Format, output: &Output) -> Result<Code, Failure> {
    let report = proxy.repair().await.map_err(failure)?;
    for left in &report.later {
        output.warn(&format!("partition {}: {}", left.id, left.why));
    }
    for silent in &report.silent {
        output.warn(&format!("controller {}: {}", silent.controller, silent.why));
    }
    if report.quarantined > 0 {
        let count = report.quarantined;
        output.warn(&format!(
            "{count} partitions are in quarantine: nobody owns them; `ipuctl partition remove --force` removes one"
        ));
    }
    let text = || {
        let mut text: String = report
            .done
            .iter()
            .map(|done| format!("{} {}\n", done.action, done.id))
            .collect();
        text.push_str(&format!("{} mended\n", report.done.len()));
        text
    };
    output.result(&render(format, &report, text)?);
    Ok(if report.is_settled() {
        Code::Done
    } else {
        Code::Unavailable
    })
}
