//! Text forms of scores: one as a table, several side by side.

use std::fmt;

use super::{Score, WaitReason};

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grouped = grouped(self.jobs);
        writeln!(f, "{}: {grouped} jobs on {} IPUs", self.policy, self.ipus)?;
        for (name, cell) in MEASURES {
            writeln!(f, "  {name:<34}{:>10}", cell(self))?;
        }
        if !self.skipped.is_empty() {
            writeln!(f, "\n  {:>8}  skipped because of", "lines")?;
            for (skip, lines) in &self.skipped {
                writeln!(f, "  {lines:>8}  {skip}")?;
            }
        }
        writeln!(
            f,
            "\n  {:>8}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "IPUs", "jobs", "mean wait", "p50", "p95", "p99", "max", "slowdown"
        )?;
        let sizes = self.waiting_by_size.iter();
        let rows = sizes.map(|(size, stats)| (size.to_string(), stats));
        for (size, stats) in rows.chain([("all".to_owned(), &self.waiting)]) {
            let [mean, p50, p95, p99, max] =
                [stats.mean, stats.p50, stats.p95, stats.p99, stats.max].map(time);
            writeln!(
                f,
                "  {size:>8}{:>9}{mean:>10}{p50:>10}{p95:>10}{p99:>10}{max:>10}{:>10.2}",
                stats.jobs, stats.slowdown
            )?;
        }
        if self.causes.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\n  {:<20}{:>12}{:>11}{:>12}{:>9}{:>9}",
            "cause", "queued", "decisions", "job-hours", "refused", "stranded"
        )?;
        for (cause, stats) in &self.causes {
            writeln!(
                f,
                "  {:<20}{:>12}{:>11}{:>12.1}{:>9}{:>9}",
                cause.code(),
                stats.waited,
                stats.decisions,
                stats.job_seconds / 3600.0,
                stats.refused,
                stats.stranded
            )?;
        }
        Ok(())
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
        let width = |name: &str| name.chars().count().max(10) + 2;
        write!(f, "{:<34}", "")?;
        for (name, _) in &self.scores {
            write!(f, "{name:>width$}", width = width(name))?;
        }
        writeln!(f)?;
        let mut row = |title: &str, cell: &dyn Fn(&Score) -> String| {
            write!(f, "{title:<34}")?;
            for (name, score) in &self.scores {
                write!(f, "{:>width$}", cell(score), width = width(name))?;
            }
            writeln!(f)
        };
        for (name, cell) in MEASURES {
            row(name, &cell)?;
        }
        let mut sizes: Vec<u32> = Vec::new();
        for (_, score) in &self.scores {
            sizes.extend(score.waiting_by_size.keys());
        }
        sizes.sort_unstable();
        sizes.dedup();
        for size in sizes {
            row(
                &format!("mean wait, {size} IPU{}", if size == 1 { "" } else { "s" }),
                &|score| {
                    let stats = score.waiting_by_size.get(&size);
                    stats.map_or_else(|| "-".into(), |stats| time(stats.mean))
                },
            )?;
        }
        for cause in WaitReason::ALL {
            if self
                .scores
                .iter()
                .any(|(_, score)| waited_for(score, cause) > 0.0)
            {
                row(&format!("job-hours {cause}"), &|score| {
                    format!("{:.1}", waited_for(score, cause) / 3600.0)
                })?;
            }
        }
        Ok(())
    }
}

/// Measure: name and text form.
type Measure = (&'static str, fn(&Score) -> String);

/// Measures of every score, in this order.
const MEASURES: [Measure; 13] = [
    ("ran", |score| grouped(score.ran)),
    ("refused", |score| grouped(score.refused)),
    ("stranded", |score| grouped(score.stranded)),
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

fn waited_for(score: &Score, cause: WaitReason) -> f64 {
    score.causes.get(&cause).map_or(0.0, |stats| stats.job_seconds)
}

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

/// Formats a number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_in_a_suitable_unit() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [0.0, 1.25, 119.9, 120.0, 7200.0, 172_800.0].map(time),
            ["0 s", "1.2 s", "119.9 s", "2.0 min", "2.0 h", "2.0 d"]
        );
    }
}
