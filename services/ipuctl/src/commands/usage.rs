//! `ipuctl usage`: lists finished holds with owner, size and duration, or adds them up.

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::Timestamp;
use ipu_proxy_client::{ProxyClient, RecordDocument, cli};
use serde::Serialize;

use crate::cli::{Format, Usage, UsageGroup};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table::{Table, csv_line, render};
use crate::time;

/// Header of the comma-separated values; stable, like the names in JSON.
const HEADINGS: [&str; 15] = [
    "id",
    "kind",
    "namespace",
    "name",
    "uid",
    "instance",
    "account",
    "controller",
    "size",
    "attempts",
    "heldSince",
    "releasedAt",
    "seconds",
    "ipuSeconds",
    "end",
];

/// Prints the holds that ended at `--since` or later.
pub(crate) async fn run(
    arguments: &Usage,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let since = &arguments.since;
    let since = time::parse(since, ipu_proxy_client::now())
        .ok_or_else(|| Failure::new(Code::Usage, format!("--since {since:?}: {}", time::FORMATS)))?;
    let list = proxy.usage(since).await?;
    if let Some(by) = arguments.by {
        let totals = UsageTotals::of(by, &list.records);
        let text = match format {
            Format::Csv => totals.csv(),
            format => render(format, &totals, || totals.table().to_string())?,
        };
        output.result(&text);
        return Ok(Code::Done);
    }
    let text = match format {
        Format::Csv => csv(&list.records),
        format => render(format, &list, || cli::usage(&list.records).to_string())?,
    };
    output.result(&text);
    Ok(Code::Done)
}

/// Sums of finished holds.
#[derive(Debug, Serialize)]
struct UsageTotals {
    by: UsageGroup,
    totals: Vec<UsageTotal>,
}

/// Sum of the holds of one namespace, account or month.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UsageTotal {
    /// Empty for holds without an owner or an account.
    name: String,
    /// Number of holds, in each month that they touch.
    holds: u64,
    ipu_seconds: f64,
}

impl UsageTotals {
    /// Adds up `records`, in the order of the names.
    fn of(by: UsageGroup, records: &[RecordDocument]) -> Self {
        let mut sums: BTreeMap<String, (u64, u128)> = BTreeMap::new();
        let mut add = |name: String, from: Timestamp, to: Timestamp, size: u32| {
            let (holds, ipu_millis) = sums.entry(name).or_default();
            *holds += 1;
            *ipu_millis += to.since(from).as_millis() * u128::from(size);
        };
        for record in records {
            let (mut from, to, size) = (record.held_since, record.released_at, record.size);
            let owner = record.owner.as_ref();
            match by {
                UsageGroup::Namespace => {
                    let namespace = owner.map(|owner| owner.namespace.clone());
                    add(namespace.unwrap_or_default(), from, to, size);
                }
                UsageGroup::Account => add(record.account.clone().unwrap_or_default(), from, to, size),
                UsageGroup::Month => loop {
                    let (name, next) = time::month(from);
                    add(name, from, to.min(next), size);
                    if to <= next {
                        break;
                    }
                    from = next;
                },
            }
        }
        let total = |(name, (holds, ipu_millis))| UsageTotal {
            name,
            holds,
            ipu_seconds: Duration::from_millis(u64::try_from(ipu_millis).unwrap_or(u64::MAX)).as_secs_f64(),
        };
        Self {
            by,
            totals: sums.into_iter().map(total).collect(),
        }
    }

    /// Returns the name of the first column.
    const fn heading(&self) -> &'static str {
        match self.by {
            UsageGroup::Namespace => "namespace",
            UsageGroup::Account => "account",
            UsageGroup::Month => "month",
        }
    }

    fn cells(&self) -> impl Iterator<Item = [String; 3]> {
        self.totals.iter().map(|total| {
            let seconds = format!("{:.3}", total.ipu_seconds);
            [total.name.clone(), total.holds.to_string(), seconds]
        })
    }

    fn csv(&self) -> String {
        let rows = self.cells().map(|cells| csv_line(&cells));
        csv_line(&[self.heading(), "holds", "ipuSeconds"]) + &rows.collect::<String>()
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&[&self.heading().to_uppercase(), "HOLDS", "IPU-SECONDS"]);
        self.cells().for_each(|cells| table.row(cells));
        table
    }
}

fn csv(records: &[RecordDocument]) -> String {
    let mut text = csv_line(&HEADINGS);
    for record in records {
        let owner = record.owner.as_ref();
        let owner_field = |part: fn(&ipu_proxy_client::OwnerDocument) -> &String| {
            owner.map(part).cloned().unwrap_or_default()
        };
        let cells = [
            record.id.to_string(),
            owner_field(|owner| &owner.kind),
            owner_field(|owner| &owner.namespace),
            owner_field(|owner| &owner.name),
            owner_field(|owner| &owner.uid),
            record.instance.to_string(),
            record.account.clone().unwrap_or_default(),
            record
                .controller
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            record.size.to_string(),
            record.attempts.to_string(),
            time::format(record.held_since),
            time::format(record.released_at),
            cli::held_seconds(record),
            cli::ipu_seconds(record),
            record.end.clone(),
        ];
        text.push_str(&csv_line(&cells));
    }
    text
}

#[cfg(test)]
mod tests {
    use ipu_core::hardware::{Inventory, Topology};
    use ipu_core::placement::BestFit;
    use ipu_testkit::{JobOutcome, ScoreOptions, SyntheticOptions, Trace, replay_trace};

    use super::*;

    #[test]
    fn an_account_with_separators_is_quoted() {
        let record = serde_json::json!({
            "id": "p", "owner": null, "instance": 0, "account": "a \"b\", c", "controller": "pod:8090", "size": 4,
            "attempts": 1, "heldSince": 1000, "releasedAt": 3500, "end": "released",
        });
        let text = csv(&[serde_json::from_value(record).unwrap()]);
        let line = "p,,,,,0,\"a \"\"b\"\", c\",pod:8090,4,1,1970-01-01T00:00:01Z,1970-01-01T00:00:03Z,2.500,10.000,released\n";
        assert_eq!(text.split_once('\n').unwrap().1, line);
    }

    fn record(namespace: &str, account: &str, size: u32, from: u64, to: u64) -> RecordDocument {
        let owner = serde_json::json!({"kind": "User", "namespace": namespace, "name": "n", "uid": "u"});
        let record = serde_json::json!({
            "id": "p", "owner": owner, "instance": 0, "account": account, "controller": "pod:8090", "size": size,
            "attempts": 1, "heldSince": from, "releasedAt": to, "end": "released",
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn a_hold_counts_in_each_month_with_the_part_that_lies_in_it() {
        let at = |text: &str| time::parse(text, Timestamp::default()).unwrap().as_millis();
        let records = [
            record(
                "a",
                "x",
                2,
                at("2026-10-31T23:59:00Z"),
                at("2026-12-01T00:01:00Z"),
            ),
            record(
                "b",
                "x",
                4,
                at("2026-12-31T23:59:59Z"),
                at("2027-01-01T00:00:00Z"),
            ),
        ];
        let csv = |by: UsageGroup| UsageTotals::of(by, &records).csv();
        assert_eq!(
            csv(UsageGroup::Month),
            "month,holds,ipuSeconds\n2026-10,1,120.000\n2026-11,1,5184000.000\n2026-12,2,124.000\n"
        );
        assert_eq!(
            csv(UsageGroup::Namespace),
            "namespace,holds,ipuSeconds\na,1,5184240.000\nb,1,4.000\n"
        );
        assert_eq!(
            csv(UsageGroup::Account),
            "account,holds,ipuSeconds\nx,2,5184244.000\n"
        );
    }

    #[test]
    fn the_sums_of_a_replayed_trace_are_the_ipu_seconds_of_the_simulation() {
        let trace = Trace::synthetic(&SyntheticOptions::mixed(1, 2_000, 256));
        let inventory = Inventory::new(&Topology::pod256());
        let replay = replay_trace(&BestFit, &trace, &inventory, &ScoreOptions::default());
        let jobs = trace.jobs().iter().zip(replay.outcomes()).enumerate();
        let records: Vec<RecordDocument> = jobs
            .filter_map(|(index, (job, outcome))| {
                let JobOutcome::Ran { start, end, .. } = outcome else {
                    return None;
                };
                let [start, end] = [start, end].map(|time| u64::try_from(time.as_millis()).unwrap());
                let (namespace, account) = (format!("team-{}", index % 7), format!("course-{}", index % 3));
                Some(record(&namespace, &account, job.size.get(), start, end))
            })
            .collect();
        let expected = replay.score().ipu_seconds;
        for (by, groups) in [
            (UsageGroup::Namespace, 7),
            (UsageGroup::Account, 3),
            (UsageGroup::Month, 1),
        ] {
            let totals = UsageTotals::of(by, &records).totals;
            assert!(totals.len() >= groups, "{by:?}: {totals:?}");
            let sum: f64 = totals.iter().map(|total| total.ipu_seconds).sum();
            assert!(
                (sum / expected - 1.0).abs() < 0.001,
                "{by:?}: {sum}, not {expected}"
            );
        }
    }
}
