//! The slurmctld in control, as the agent sees it over time.
//!
//! `BOOT_TIME` is the start of the process that answers. A backup that takes over has started long before,
//! and the clock of a host may be set. So a new value of `BOOT_TIME`, or another slurmctld that answers
//! first, means only that another process has control. The passes of the agent show which holds are older,
//! and how long ago that was.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::scontrol::config::SlurmctldConfig;
use crate::start::RunStart;

/// The clocks of the ledger's host and of slurmctld's host may differ by so many seconds. A hold that began
/// so shortly after the start of slurmctld counts as older than the start.
const MAX_CLOCK_SKEW: u64 = 10;
/// Longest time between two answers of one slurmctld, if there is a backup. A backup waits longer for the
/// primary (`SlurmctldTimeout`, 120 s by default), so that the primary cannot have had control in between.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// A hold of a run in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The start that owns the partition.
    pub start: RunStart,
    /// The begin of the hold in seconds since 1970; none if it is not known.
    pub since: Option<u64>,
}

/// The slurmctld in control, and the holds that are older than the first answer of it.
#[derive(Clone, Debug, Default)]
pub struct SlurmctldWatch(Option<Control>);

#[derive(Clone, Debug)]
struct Control {
    /// Its answer.
    config: SlurmctldConfig,
    first_answer: Instant,
    last_answer: Instant,
    /// Whether it had settled before the first answer.
    was_settled: bool,
    /// The holds that may have begun under another slurmctld.
    inherited: BTreeSet<RunStart>,
}

impl SlurmctldWatch {
    /// Takes an answer. Returns whether the slurmctld of the passes before has had control since them. A
    /// backup that answers again may have lost control to a primary meanwhile, and taken over again.
    #[must_use]
    pub fn knows(&mut self, config: &SlurmctldConfig, answered: Instant) -> bool {
        let Some(control) = &mut self.0 else {
            return false;
        };
        let silence = answered.saturating_duration_since(control.last_answer);
        let is_known =
            control.config.is_same_slurmctld(config) && !(config.has_backup && silence > MAX_SILENCE);
        // Otherwise the answer counts once it is taken by `take_over`.
        if is_known {
            control.last_answer = answered;
        }
        is_known
    }

    /// Returns whether a slurmctld has answered.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Takes the first answer of another slurmctld. `holds` are all holds of the ledger, listed **after**
    /// that answer. `now` is the time in seconds since 1970.
    ///
    /// The first answer to an agent that has just started may be of a slurmctld that has had control for
    /// long. Only then the clocks decide, and only without a backup.
    ///
    /// ```
    /// use std::time::Instant;
    ///
    /// use ipu_slurm::{Hold, RunStart, SlurmctldConfig, SlurmctldWatch};
    ///
    /// let text = "BOOT_TIME = 1795599505\nKillWait = 30 sec\nSlurmdTimeout = 300 sec\n\
    ///             UnkillableStepTimeout = 60 sec\n";
    /// let (config, answered) = (SlurmctldConfig::parse(text)?, Instant::now());
    /// let hold = |uid, since| RunStart::from_uid(uid).map(|start| Hold { start, since: Some(since) });
    /// let (before, after) = (hold("7.1795590000", 1_795_590_005)?, hold("8.1795600000", 1_795_600_005)?);
    /// let mut watch = SlurmctldWatch::default();
    /// watch.take_over(&config, [before.clone(), after.clone()], answered, 1_795_601_000);
    /// assert!(!watch.saw_begin(&before.start) && watch.saw_begin(&after.start));
    /// // The agent has just started, and slurmctld has run for longer than the 390 s in which it settles.
    /// assert!(watch.knows(&config, answered) && watch.has_settled(&config, answered));
    /// # Ok::<(), ipu_slurm::InputError>(())
    /// ```
    pub fn take_over(
        &mut self,
        config: &SlurmctldConfig,
        holds: impl IntoIterator<Item = Hold>,
        answered: Instant,
        now: u64,
    ) {
        let by_clocks = self.0.is_none() && !config.has_backup;
        let settled = config.started.saturating_add(config.settle_time().as_secs());
        let is_later = |since: u64| config.started.saturating_add(MAX_CLOCK_SKEW) < since && since <= now;
        let inherited = holds
            .into_iter()
            .filter(|hold| !(by_clocks && hold.since.is_some_and(is_later)));
        self.0 = Some(Control {
            config: config.clone(),
            first_answer: answered,
            last_answer: answered,
            was_settled: by_clocks && settled < now,
            inherited: inherited.map(|hold| hold.start).collect(),
        });
    }

    /// Returns whether the hold of a start in the ledger began under this slurmctld, which has forgotten
    /// nothing of it then.
    #[must_use]
    pub fn saw_begin(&self, start: &RunStart) -> bool {
        let control = self.0.as_ref();
        control.is_some_and(|control| !control.inherited.contains(start))
    }

    /// Returns whether every node has reported its processes to this slurmctld.
    #[must_use]
    pub fn has_settled(&self, config: &SlurmctldConfig, now: Instant) -> bool {
        self.0.as_ref().is_some_and(|control| {
            let age = now.saturating_duration_since(control.first_answer);
            control.was_settled || age > config.settle_time()
        })
    }
}
