//! Cordons: hardware that gets nothing new until whoever said so lifts it.

use ipu_core::{Exclusion, ExclusionOwner, ExclusionTarget};
use ipu_ledger::Excluded;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::auth::Identity;
use crate::partition::{BlockerDocument, named};
use crate::problem::Problem;

/// The longest reason.
const REASON_MAX: usize = 1024;

/// The body of `POST /v1/exclusions`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Exclude {
    id: String,
    controller: String,
    #[serde(default)]
    machine: Option<String>,
    #[serde(default)]
    ipu: Option<u32>,
    reason: String,
}

/// An exclusion as the API shows it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExclusionDocument {
    id: String,
    controller: String,
    machine: Option<String>,
    ipu: Option<u32>,
    owner: String,
    reason: String,
    since: ipu_core::Timestamp,
}

impl From<&Exclusion> for ExclusionDocument {
    fn from(exclusion: &Exclusion) -> Self {
        let (machine, ipu) = match &exclusion.what {
            ExclusionTarget::Machine(agent) => (Some(agent.to_string()), None),
            ExclusionTarget::Ipu(agent, ipu) => (Some(agent.to_string()), Some(*ipu)),
            _ => (None, None),
        };
        Self {
            id: exclusion.id.to_string(),
            controller: exclusion.controller.to_string(),
            machine,
            ipu,
            owner: exclusion.owner.to_string(),
            reason: exclusion.reason.clone(),
            since: exclusion.since,
        }
    }
}

/// What an exclusion comes to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ExcludedDocument {
    exclusion: ExclusionDocument,
    /// Who holds something there now, and keeps it.
    holders: Vec<BlockerDocument>,
}

impl From<&Excluded> for ExcludedDocument {
    fn from(excluded: &Excluded) -> Self {
        Self {
            exclusion: ExclusionDocument::from(&excluded.exclusion),
            holders: excluded.holders.iter().map(BlockerDocument::from).collect(),
        }
    }
}

impl Exclude {
    fn parse(self, who: &Identity) -> Result<Exclusion, Problem> {
        if self.reason.is_empty() || self.reason.len() > REASON_MAX {
            let rule = format!("must say why, in at most {REASON_MAX} bytes");
            return Err(Problem::invalid(
                "reason",
                self.reason.len(),
                rule,
                "say it in a sentence",
            ));
        }
        let what = match (self.machine, self.ipu) {
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
            named("id", self.id)?,
            named("controller", self.controller)?,
            what,
            owner,
            self.reason,
        ))
    }
}

/// Under which name somebody excludes.
fn owner_of(who: &Identity) -> Result<ExclusionOwner, Problem> {
    named("identity", who.name().to_owned())
}

/// `GET /v1/exclusions`.
pub(crate) async fn list(app: &App) -> Result<Vec<ExclusionDocument>, Problem> {
    let all = app.ledger.exclusions().await?;
    Ok(all.iter().map(ExclusionDocument::from).collect())
}

/// `POST /v1/exclusions`.
pub(crate) async fn exclude(app: &App, who: &Identity, asked: Exclude) -> Result<ExcludedDocument, Problem> {
    who.may_act_for_all()?;
    let excluded = app.ledger.exclude(asked.parse(who)?).await?;
    Ok(ExcludedDocument::from(&excluded))
}

/// `DELETE /v1/exclusions/{id}`. Safe to repeat.
pub(crate) async fn lift(
    app: &App,
    who: &Identity,
    id: String,
) -> Result<Option<ExclusionDocument>, Problem> {
    who.may_act_for_all()?;
    let lifted = app.ledger.lift(&named("id", id)?, &owner_of(who)?).await?;
    app.work.notify_one();
    Ok(lifted.as_ref().map(ExclusionDocument::from))
}
