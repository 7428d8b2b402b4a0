//! Text form of scores: side by side, a row per measure.

use std::collections::BTreeSet;
use std::fmt;

use ipu_core::ReasonCode;

use super::Score;

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::compare(&[(&self.policy, self)]).fmt(f)
    }
}

impl Score {
    /// Returns scores side by side, each with a name, for the same trace on the same hardware.
    #[must_use]
    pub fn compare<'a>(scores: &[(&'a str, &'a Self)]) -> Comparison<'a> {
        Comparison {
            scores: scores.to_vec(),
        }
    }
}

/// Table of scores side by side: a row per measure, a column per score.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    scores: Vec<(&'a str, &'a Score)>,
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |title: &str, cell: &dyn Fn(&str, &Score) -> String| {
            write!(f, "{title:<34}")?;
            for (name, score) in &self.scores {
                let width = name.chars().count().max(10) + 2;
                write!(f, "{:>width$}", cell(name, score))?;
            }
            writeln!(f)
        };
        row("", &|name, _| name.to_owned())?;
        for (title, cell) in MEASURES {
            row(title, &|_, score| cell(score))?;
        }
        let scores = || self.scores.iter().map(|(_, score)| score);
        let sizes: BTreeSet<u32> = scores()
            .flat_map(|score| score.waiting_by_size.keys())
            .copied()
            .collect();
        for size in sizes {
            let ipus = if size == 1 { "IPU" } else { "IPUs" };
            row(&format!("mean wait, {size} {ipus}"), &|_, score| {
                let stats = score.waiting_by_size.get(&size);
                stats.map_or_else(|| "-".into(), |stats| time(stats.mean))
            })?;
        }
        let causes: BTreeSet<&ReasonCode> = scores().flat_map(|score| score.causes.keys()).collect();
        for cause in causes {
            let waited = |score: &Score| score.causes.get(cause).map_or(0.0, |stats| stats.job_seconds);
            if scores().any(|score| waited(score) > 0.0) {
                row(&format!("job-hours {cause}"), &|_, score| {
                    format!("{:.1}", waited(score) / 3600.0)
                })?;
            }
        }
        let skipped: BTreeSet<_> = scores().flat_map(|score| score.skipped.keys()).collect();
        for reason in skipped {
            row(&format!("skipped, {reason}"), &|_, score| {
                score.skipped.get(reason).copied().unwrap_or(0).to_string()
            })?;
        }
        Ok(())
    }
}

/// Measure: name and text form.
type Measure = (&'static str, fn(&Score) -> String);

/// Measures of every score, in this order.
const MEASURES: [Measure; 13] = [
    ("ran", |score| score.ran.to_string()),
    ("refused", |score| score.refused.to_string()),
    ("stranded", |score| score.stranded.to_string()),
    ("makespan", |score| time(score.makespan_seconds)),
    ("utilisation", |score| percent(score.utilisation)),
    ("utilisation in steady state", |score| {
        score.steady_utilisation.map_or_else(|| "-".into(), percent)
    }),
    ("fragmentation", |score| percent(score.fragmentation.mean)),
    ("fragmentation, avoidable", |score| {
        percent(score.fragmentation.avoidable)
    }),
    ("idle while fragmented", |score| percent(score.fragmentation.idle)),
    ("mean wait", |score| time(score.waiting.mean)),
    ("95th percentile of waits", |score| time(score.waiting.p95)),
    ("longest wait", |score| time(score.waiting.max)),
    ("slowdown", |score| format!("{:.2}", score.waiting.slowdown)),
];

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Formats seconds in a suitable unit.
fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".into(),
        below if below < 120.0 => format!("{below:.1} s"),
        below if below < 7200.0 => format!("{:.1} min", below / 60.0),
        below if below < 172_800.0 => format!("{:.1} h", below / 3600.0),
        more => format!("{:.1} d", more / 86_400.0),
    }
}
