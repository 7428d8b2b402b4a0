//! The usage log in the ledger's own file.
//!
//! A record is written before the commit that removes its hold, by the same connection into the same
//! write-ahead log. It therefore needs no flush of its own: a commit that is on disk has everything before it
//! on disk.

use async_trait::async_trait;
use ipu_core::{PartitionId, Timestamp, UsageRecord};
use rusqlite::{Connection, TransactionBehavior};

use super::{SqliteStore, StoreError};
use crate::usage::{UsageLog, UsagePosition};

/// One row per hold.
pub(super) const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS usage (hold TEXT PRIMARY KEY, released_at INTEGER NOT NULL, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
     CREATE INDEX IF NOT EXISTS usage_by_release ON usage (released_at);";

/// One row per key; of several records of a hold, the one with the latest release is kept.
const APPEND: &str = "INSERT INTO usage VALUES (?1, ?2, ?3) ON CONFLICT (hold)
     DO UPDATE SET released_at = excluded.released_at, record = excluded.record
     WHERE excluded.released_at >= usage.released_at";

const READ: &str =
    "SELECT record FROM usage WHERE (released_at, hold) > (?1, ?2) ORDER BY released_at, hold LIMIT ?3";

#[async_trait]
impl UsageLog for SqliteStore {
    async fn append(&self, records: &[UsageRecord]) -> Result<(), StoreError> {
        let records = records.to_vec();
        self.on_thread("write", move |shared, connection| {
            let to_store_error = |error: rusqlite::Error| shared.to_store_error("write", &error);
            connection
                .pragma_update(None, "synchronous", "NORMAL")
                .map_err(to_store_error)?;
            let written = append(connection, &records);
            connection
                .pragma_update(None, "synchronous", "FULL")
                .map_err(to_store_error)?;
            written.map_err(to_store_error)
        })
        .await
    }

    async fn since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, StoreError> {
        self.read_usage(to_sql_millis(since), String::new(), -1).await
    }

    async fn page(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        match after {
            Some(after) if after.released_at >= since => {
                let key = (after.id.clone(), after.ticket, after.held_since);
                self.read_usage(to_sql_millis(after.released_at), hold_key(&key), limit)
                    .await
            }
            _ => self.read_usage(to_sql_millis(since), String::new(), limit).await,
        }
    }
}

impl SqliteStore {
    /// Reads records after a release time and a key. Every key is after the empty one; a negative limit means
    /// no limit.
    async fn read_usage(&self, time: i64, key: String, limit: i64) -> Result<Vec<UsageRecord>, StoreError> {
        self.on_thread("read", move |shared, connection| {
            let rows: Vec<String> = connection
                .prepare_cached(READ)
                .and_then(|mut query| query.query_map((time, key, limit), |row| row.get(0))?.collect())
                .map_err(|error| shared.to_store_error("read", &error))?;
            let records: Result<Vec<UsageRecord>, _> =
                rows.iter().map(|row| serde_json::from_str(row)).collect();
            records.map_err(|error| shared.corrupt(&error.to_string()))
        })
        .await
    }
}

/// Returns the primary key of a record.
fn hold_key((id, ticket, since): &(PartitionId, u64, Timestamp)) -> String {
    format!("{id} {ticket} {}", since.as_millis())
}

fn append(connection: &mut Connection, records: &[UsageRecord]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut insert = transaction.prepare_cached(APPEND)?;
        for record in records {
            let hold = hold_key(&record.key());
            // Like an entry: string keys and finite numbers only.
            let text = serde_json::to_string(record).unwrap_or_default();
            insert.execute((hold, to_sql_millis(record.released_at), text))?;
        }
    }
    transaction.commit()
}

/// Converts to SQLite's integers; times beyond their range are clamped to the latest one.
fn to_sql_millis(at: Timestamp) -> i64 {
    i64::try_from(at.as_millis()).unwrap_or(i64::MAX)
}
