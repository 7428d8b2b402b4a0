//! The `/v1/cordons` endpoints: cordoned hardware gets no new partitions until the owner lifts the cordon.

use ipu_core::CordonOwner;
use ipu_core::allocator::{Cordon, CordonTarget};
use ipu_proxy_client::{CordonDocument, CordonList, CordonRequest, CordonedDocument, UncordonedDocument};

use crate::app::App;
use crate::auth::Identity;
use crate::partition_api::parse_name;
use crate::problem::Problem;

/// Maximum number of characters of a rejected reason in a problem.
const MAX_EXCERPT_LEN: usize = 40;

/// Creates a cordon from a request body.
fn cordon_of(body: CordonRequest, identity: &Identity) -> Result<Cordon, Problem> {
    if body.reason.is_empty() || body.reason.len() > Cordon::MAX_REASON_LEN {
        let rule = format!("must be a text of 1 to {} bytes", Cordon::MAX_REASON_LEN);
        return Err(Problem::invalid(
            "reason",
            excerpt(&body.reason),
            rule,
            "give the reason in one sentence",
        ));
    }
    let target = match (body.machine, body.ipu) {
        (None, None) => CordonTarget::Controller,
        (Some(machine), None) => CordonTarget::Machine(parse_name("machine", machine)?),
        (Some(machine), Some(ipu)) => CordonTarget::Ipu(parse_name("machine", machine)?, ipu),
        (None, Some(ipu)) => {
            return Err(Problem::invalid(
                "ipu",
                ipu,
                "needs a machine",
                "set machine, too",
            ));
        }
    };
    let owner = owner_of(identity)?;
    Ok(Cordon::new(
        parse_name("id", body.id)?,
        parse_name("controller", body.controller)?,
        target,
        owner,
        body.reason,
    ))
}

/// Returns the text, or the start and the length of a long one.
fn excerpt(text: &str) -> String {
    match text.char_indices().nth(MAX_EXCERPT_LEN) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

/// Returns the owner of the cordons of a client.
fn owner_of(identity: &Identity) -> Result<CordonOwner, Problem> {
    parse_name("identity", identity.name().to_owned())
}

/// Handles `GET /v1/cordons`.
pub(crate) async fn list(app: &App) -> Result<CordonList, Problem> {
    let view = app.allocator.view().await?;
    let cordons = view.state().cordons();
    Ok(CordonList::new(
        cordons.map(|cordon| CordonDocument::from(&**cordon)).collect(),
    ))
}

/// Handles `POST /v1/cordons`.
pub(crate) async fn cordon(
    app: &App,
    identity: &Identity,
    body: CordonRequest,
) -> Result<CordonedDocument, Problem> {
    identity.may_act_for_all()?;
    let cordoned = app.allocator.cordon(cordon_of(body, identity)?).await?;
    Ok(CordonedDocument::from(&cordoned))
}

/// Handles `DELETE /v1/cordons/{id}`, which is idempotent.
pub(crate) async fn uncordon(
    app: &App,
    identity: &Identity,
    id: String,
) -> Result<UncordonedDocument, Problem> {
    identity.may_act_for_all()?;
    let lifted = app
        .allocator
        .uncordon(&parse_name("id", id)?, &owner_of(identity)?)
        .await?;
    Ok(UncordonedDocument::new(lifted.as_ref().map(CordonDocument::from)))
}
