//! Cordons: hardware that gets nothing new until whoever said so lifts it.

use ipu_core::{Cordon, CordonOwner, CordonTarget};
use ipu_proxy_client::{CordonDocument, CordonList, CordonRequest, CordonedDocument, Uncordoned};

use crate::app::App;
use crate::auth::Identity;
use crate::partition_api::named;
use crate::problem::Problem;

/// The cordon that a body makes.
fn cordon_of(body: CordonRequest, who: &Identity) -> Result<Cordon, Problem> {
    if body.reason.is_empty() || body.reason.len() > Cordon::MAX_REASON_LEN {
        let rule = format!("must say why, in at most {} bytes", Cordon::MAX_REASON_LEN);
        return Err(Problem::invalid(
            "reason",
            body.reason.len(),
            rule,
            "say it in a sentence",
        ));
    }
    let what = match (body.machine, body.ipu) {
        (None, None) => CordonTarget::Controller,
        (Some(machine), None) => CordonTarget::Machine(named("machine", machine)?),
        (Some(machine), Some(ipu)) => CordonTarget::Ipu(named("machine", machine)?, ipu),
        (None, Some(ipu)) => {
            return Err(Problem::invalid(
                "ipu",
                ipu,
                "is one of a machine",
                "name the machine too",
            ));
        }
    };
    let owner = owner_of(who)?;
    Ok(Cordon::new(
        named("id", body.id)?,
        named("controller", body.controller)?,
        what,
        owner,
        body.reason,
    ))
}

/// Under which name somebody cordons.
fn owner_of(who: &Identity) -> Result<CordonOwner, Problem> {
    named("identity", who.name().to_owned())
}

/// `GET /v1/exclusions`.
pub(crate) async fn list(app: &App) -> Result<CordonList, Problem> {
    let all = app.ledger.cordons().await?;
    Ok(CordonList::new(all.iter().map(CordonDocument::from).collect()))
}

/// `POST /v1/exclusions`.
pub(crate) async fn cordon(
    app: &App,
    who: &Identity,
    asked: CordonRequest,
) -> Result<CordonedDocument, Problem> {
    who.may_act_for_all()?;
    let cordoned = app.ledger.cordon(cordon_of(asked, who)?).await?;
    Ok(CordonedDocument::from(&cordoned))
}

/// `DELETE /v1/exclusions/{id}`. Safe to repeat.
pub(crate) async fn lift(app: &App, who: &Identity, id: String) -> Result<Uncordoned, Problem> {
    who.may_act_for_all()?;
    let lifted = app.ledger.uncordon(&named("id", id)?, &owner_of(who)?).await?;
    app.work.notify_one();
    Ok(Uncordoned::new(lifted.as_ref().map(CordonDocument::from)))
}
