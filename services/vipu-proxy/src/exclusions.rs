//! Cordons: hardware that gets nothing new until whoever said so lifts it.

use ipu_core::{Exclusion, ExclusionOwner, ExclusionTarget};
use ipu_proxy_client::{Exclude, ExcludedDocument, ExclusionDocument, ExclusionList, Lifted};

use crate::app::App;
use crate::auth::Identity;
use crate::partition::named;
use crate::problem::Problem;

/// The exclusion that a body makes.
fn exclusion_of(body: Exclude, who: &Identity) -> Result<Exclusion, Problem> {
    if body.reason.is_empty() || body.reason.len() > Exclusion::MAX_REASON_LEN {
        let rule = format!("must say why, in at most {} bytes", Exclusion::MAX_REASON_LEN);
        return Err(Problem::invalid(
            "reason",
            body.reason.len(),
            rule,
            "say it in a sentence",
        ));
    }
    let what = match (body.machine, body.ipu) {
        (None, None) => ExclusionTarget::Controller,
        (Some(machine), None) => ExclusionTarget::Machine(named("machine", machine)?),
        (Some(machine), Some(ipu)) => ExclusionTarget::Ipu(named("machine", machine)?, ipu),
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
    Ok(Exclusion::new(
        named("id", body.id)?,
        named("controller", body.controller)?,
        what,
        owner,
        body.reason,
    ))
}

/// Under which name somebody excludes.
fn owner_of(who: &Identity) -> Result<ExclusionOwner, Problem> {
    named("identity", who.name().to_owned())
}

/// `GET /v1/exclusions`.
pub(crate) async fn list(app: &App) -> Result<ExclusionList, Problem> {
    let all = app.ledger.exclusions().await?;
    Ok(ExclusionList::new(
        all.iter().map(ExclusionDocument::from).collect(),
    ))
}

/// `POST /v1/exclusions`.
pub(crate) async fn exclude(app: &App, who: &Identity, asked: Exclude) -> Result<ExcludedDocument, Problem> {
    who.may_act_for_all()?;
    let excluded = app.ledger.exclude(exclusion_of(asked, who)?).await?;
    Ok(ExcludedDocument::from(&excluded))
}

/// `DELETE /v1/exclusions/{id}`. Safe to repeat.
pub(crate) async fn lift(app: &App, who: &Identity, id: String) -> Result<Lifted, Problem> {
    who.may_act_for_all()?;
    let lifted = app.ledger.lift(&named("id", id)?, &owner_of(who)?).await?;
    app.work.notify_one();
    Ok(Lifted::new(lifted.as_ref().map(ExclusionDocument::from)))
}
