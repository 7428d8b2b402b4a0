//! `ipuctl usage`: lists finished holds with owner, size and duration.

use ipu_proxy_client::{ProxyClient, RecordDocument, cli};

use crate::cli::{Format, Usage};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table::{csv_line, render};
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
    let text = match format {
        Format::Csv => csv(&list.records),
        format => render(format, &list, || cli::usage(&list.records).to_string())?,
    };
    output.result(&text);
    Ok(Code::Done)
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
}
