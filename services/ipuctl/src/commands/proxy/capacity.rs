//! `ipuctl stats`, `query`, `controllers` and `repair` through a proxy.

use ipu_core::Reason;
use ipu_proxy_client::{ControllerStatus, DryRunRequest, ProxyClient};

use super::{failure, unsupported};
use crate::cli::{Format, Query};
use crate::commands::query::fit_count;
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::run::never_fits;
use crate::table::{Table, render};

/// Prints used and available IPUs by namespace.
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

/// Prints how many partitions of a size fit now. The exit code is 0 if at least one fits, 75 if none fits
/// now, 78 if none can ever fit, 69 if no controller is available.
pub(super) async fn query(
    arguments: Query,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    if arguments.allocation.is_some() {
        return Err(unsupported(
            "query --allocation",
            "omit it, or use a controller with --vipu",
        ));
    }
    let size = arguments.size.get();
    let fit = proxy.query(size).await.map_err(failure)?;
    if !fit.message.is_empty() && format.is_text() {
        output.warn(&fit.message);
    }
    // If the plan fails, the answer remains that the size does not fit now.
    let impossible = if fit.available && fit.num_of_partitions == 0 {
        impossible(size, proxy).await.unwrap_or_default()
    } else {
        None
    };
    let text = || match &impossible {
        Some(reason) => format!("{}\n", display::reason(reason)),
        None if !fit.available => format!(
            "The number of partitions of {} that fit is unknown: no controller is available\n",
            display::count(size, "IPU")
        ),
        None => format!("{}\n", fit_count(fit.num_of_partitions, size)),
    };
    output.result(&render(format, &fit, text)?);
    Ok(match (fit.available, fit.num_of_partitions, &impossible) {
        (false, ..) => Code::Unavailable,
        (true, 0, Some(_)) => Code::Impossible,
        (true, 0, None) => Code::NoCapacity,
        _ => Code::Done,
    })
}

/// Returns the reason why no controller can ever fit a partition of `size` IPUs; none if one can.
async fn impossible(size: u32, proxy: &ProxyClient) -> Result<Option<Reason>, Failure> {
    let planned = proxy
        .plan(&DryRunRequest::new(vec![size]))
        .await
        .map_err(failure)?;
    let mut reasons = planned
        .planned
        .into_iter()
        .flat_map(|planned| planned.reasons)
        .map(|reason| reason.reason)
        .collect::<Vec<_>>();
    if reasons.iter().any(|reason| !never_fits(reason)) {
        return Ok(None);
    }
    Ok(reasons.pop())
}

/// Prints the controllers. The exit code is 0 if all answer.
pub(super) async fn controllers(
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let list = proxy.controllers().await.map_err(failure)?;
    let table = || {
        let mut table = Table::new(&[
            "CONTROLLER",
            "STATE",
            "FREE",
            "LARGEST",
            "PLACEMENT",
            "VERSION",
            "ERROR",
        ]);
        let optional = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
        for status in &list.controllers {
            let state = match (status.available, status.draining) {
                (true, false) => "available",
                (true, true) => "draining",
                (false, _) => "unavailable",
            };
            table.row([
                status.controller.name.to_string(),
                state.to_owned(),
                optional(status.free),
                optional(status.largest_block),
                placement(status),
                status.version.clone().unwrap_or_default(),
                status.error.clone().unwrap_or_default(),
            ]);
        }
        table.text()
    };
    output.result(&render(format, &list, table)?);
    let unavailable = list.controllers.iter().any(|status| !status.available);
    Ok(if unavailable {
        Code::Unavailable
    } else {
        Code::Done
    })
}

/// Returns who chooses the IPUs, and whether that is a fallback.
fn placement(status: &ControllerStatus) -> String {
    let placement = status.placement.clone().unwrap_or_default();
    if status.placement_fallback {
        format!("{placement} (fallback)")
    } else {
        placement
    }
}

/// Repairs the ledger of the proxy now. The exit code is 0 if no operation is left unfinished.
pub(super) async fn repair(proxy: &ProxyClient, format: Format, output: &Output) -> Result<Code, Failure> {
    let report = proxy.repair().await.map_err(failure)?;
    for unfinished in &report.unfinished {
        output.warn(&format!("partition {}: {}", unfinished.id, unfinished.reason));
    }
    for unavailable in &report.unavailable {
        output.warn(&format!(
            "controller {}: {}",
            unavailable.controller, unavailable.reason
        ));
    }
    if report.quarantined > 0 {
        output.warn(&format!(
            "{} quarantined, without a known owner; `ipuctl partition remove --force` removes one",
            display::count(report.quarantined, "partition")
        ));
    }
    let text = || {
        let actions: Vec<String> = report
            .done
            .iter()
            .map(|done| format!("{} {}", done.action, done.id))
            .collect();
        let count = display::count(report.done.len(), "repair");
        if actions.is_empty() {
            format!("{count}\n")
        } else {
            format!("{count}: {}\n", actions.join(", "))
        }
    };
    output.result(&render(format, &report, text)?);
    Ok(if report.is_settled() {
        Code::Done
    } else {
        Code::Unavailable
    })
}
