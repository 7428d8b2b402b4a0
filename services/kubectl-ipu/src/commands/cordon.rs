//! `kubectl ipu cordon`, `uncordon` and `drain`: hardware on which no new partition is placed.

use std::time::Duration;

use ipu_proxy_client::ProxyClient;
use ipu_proxy_client::cli::{self, CordonSelector};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use kube::api::{Api, PostParams};

use crate::cli::{Cordon, Format};
use crate::exit_code::{Code, Failure, api_failure};
use crate::output::{self, render};

/// Returns the reason with the name of the caller: the proxy sees only the ServiceAccount.
async fn signed(reason: &str, client: &Client) -> Result<String, Failure> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(|error| api_failure("ask the API server for your name", error))?;
    let user = review.status.and_then(|status| status.user_info?.username);
    Ok(match user {
        Some(user) => format!("{reason} ({user})"),
        None => reason.to_owned(),
    })
}

/// Marks hardware unschedulable, and prints the partitions that still use it.
pub(crate) async fn cordon(
    arguments: Cordon,
    proxy: &ProxyClient,
    client: &Client,
    format: Format,
) -> Result<Code, Failure> {
    let reason = signed(&arguments.reason, client).await?;
    let cordoned = arguments.target.cordon(arguments.id, reason, proxy).await?;
    output::result(&render(format, &cordoned, || cli::cordoned_text(&cordoned))?)?;
    Ok(Code::Done)
}

/// Marks hardware schedulable.
pub(crate) async fn uncordon(
    target: Option<&CordonSelector>,
    id: Option<String>,
    proxy: &ProxyClient,
    format: Format,
) -> Result<Code, Failure> {
    let (id, lifted) = CordonSelector::uncordon(target, id, proxy).await?;
    output::result(&render(format, &lifted, || cli::uncordoned_text(&id, &lifted))?)?;
    Ok(Code::Done)
}

/// Marks hardware unschedulable and waits until no partition uses it.
pub(crate) async fn drain(
    arguments: Cordon,
    wait_for: Option<u64>,
    proxy: &ProxyClient,
    client: &Client,
    format: Format,
) -> Result<Code, Failure> {
    let reason = signed(&arguments.reason, client).await?;
    let timeout = wait_for.map(Duration::from_secs);
    let mut shown = String::new();
    let mut on_wait = |text: String| {
        if text != shown {
            output::say(&text);
            shown = text;
        }
    };
    let drain = arguments
        .target
        .drain(arguments.id, reason, timeout, proxy, &mut on_wait);
    let drained_cordon = drain.await?;
    output::result(&render(format, &drained_cordon, || {
        format!("{} drained\n", drained_cordon.cordon)
    })?)?;
    Ok(Code::Done)
}
