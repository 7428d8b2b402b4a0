//! `ipuctl stats`, `query`, `controllers` and `repair`.

use ipu_core::Reason;
use ipu_proxy_client::{CapacityQuery, DryRunRequest, Fit, ProxyClient, cli};
use serde::Serialize;

use crate::cli::{Format, Query};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table::render;

/// Prints used and available IPUs by namespace.
pub(crate) async fn stats(proxy: &ProxyClient, format: Format, output: &Output) -> Result<Code, Failure> {
    let stats = proxy.stats().await?;
    output.result(&render(format, &stats, || cli::stats(&stats).to_string())?);
    // The note is an addition: without it the answer is complete.
    let controllers = proxy.controllers().await.ok();
    if let Some(note) = controllers.as_ref().and_then(cli::foreign_partitions) {
        output.say(&note);
    }
    Ok(Code::Done)
}

/// Answer to a query.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct QueryOutput {
    #[serde(flatten)]
    fit: Fit,
    /// Number of free IPUs of all controllers that answer.
    free: u32,
    /// Number of IPUs of the largest partition that fits.
    largest: u32,
}

/// Prints how many partitions of a size fit now. The exit code is 0 if at least one fits, 75 if none fits
/// now, 78 if none can ever fit, 69 if no controller is available.
pub(crate) async fn query(
    arguments: Query,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let size = arguments.size.get();
    let mut query = CapacityQuery::new(size);
    query.allocation = arguments.allocation.map(|allocation| allocation.to_string());
    let fit = proxy.query(&query).await?;
    // If the plan fails, the answer remains that the size does not fit now.
    let impossible = if fit.num_of_partitions == 0 {
        impossible(&query, proxy).await.unwrap_or_default()
    } else {
        None
    };
    let controllers = proxy.controllers().await?.controllers;
    let answer = QueryOutput {
        free: controllers.iter().filter_map(|status| status.free).sum(),
        largest: controllers
            .iter()
            .filter_map(|status| status.largest_block)
            .max()
            .unwrap_or(0),
        fit,
    };
    let fit = &answer.fit;
    if impossible.is_none() && !fit.message.is_empty() && format.is_text() {
        output.warn(&fit.message);
    }
    let text = || match &impossible {
        Some(reason) => format!("{}\n", display::reason(reason)),
        None if !fit.available => format!(
            "The number of partitions of {} that fit is unknown: no controller is available\n",
            display::count(size, "IPU")
        ),
        None => format!(
            "{}; {} free, the largest free block is {}\n",
            fit_count(fit.num_of_partitions, size),
            display::count(answer.free, "IPU"),
            answer.largest
        ),
    };
    output.result(&render(format, &answer, text)?);
    Ok(match (&impossible, fit.available, fit.num_of_partitions) {
        (Some(_), ..) => Code::Impossible,
        (None, false, _) => Code::Unavailable,
        (None, true, 0) => Code::NoCapacity,
        _ => Code::Done,
    })
}

/// Returns the number of partitions of `size` IPUs that fit, as a phrase.
fn fit_count(number: u64, size: u32) -> String {
    let verb = if number == 1 { "fits" } else { "fit" };
    format!(
        "{} of {} {verb} now",
        display::count(number, "partition"),
        display::count(size, "IPU")
    )
}

/// Returns the reason why no controller can ever fit a partition; none if one can.
async fn impossible(query: &CapacityQuery, proxy: &ProxyClient) -> Result<Option<Reason>, Failure> {
    let mut request = DryRunRequest::new(vec![query.size]);
    request.allocation.clone_from(&query.allocation);
    let response = proxy.plan(&request).await?;
    let mut reasons = response
        .results
        .into_iter()
        .flat_map(|result| result.reasons)
        .map(|reason| reason.reason)
        .collect::<Vec<_>>();
    if reasons.iter().any(|reason| !reason.code.is_permanent()) {
        return Ok(None);
    }
    Ok(reasons.pop())
}

/// Prints the controllers. The exit code is 0 if all answer.
pub(crate) async fn controllers(
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let list = proxy.controllers().await?;
    output.result(&render(format, &list, || cli::controllers(&list).to_string())?);
    let unavailable = list.controllers.iter().any(|status| !status.available);
    Ok(if unavailable {
        Code::Unavailable
    } else {
        Code::Done
    })
}

/// Repairs the ledger of the proxy now. The exit code is 0 if no operation is left unfinished.
pub(crate) async fn repair(proxy: &ProxyClient, format: Format, output: &Output) -> Result<Code, Failure> {
    let report = proxy.repair().await?;
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
