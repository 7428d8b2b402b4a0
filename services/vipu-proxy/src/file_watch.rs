//! Files that the proxy reloads when they change.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

/// Interval between two reads of a file. Changes apply within a minute, of which a volume mount may need the
/// most.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Reads the file at every [`POLL_INTERVAL`] and passes changed text to `apply`. An unreadable or refused
/// file is logged once and changes nothing.
pub(crate) async fn watch_file<F: Future<Output = Result<(), String>>>(
    path: PathBuf,
    mut current: String,
    mut stopping: watch::Receiver<bool>,
    mut apply: impl FnMut(String) -> F,
) {
    let mut logged = String::new();
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        let outcome = match tokio::fs::read_to_string(&path).await {
            Ok(text) if text == current => Ok(false),
            Ok(text) => {
                current = text;
                apply(current.clone()).await.map(|()| true)
            }
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(true) => {
                tracing::info!(file = %path.display(), "applied a changed file");
                logged.clear();
            }
            Ok(false) => {}
            Err(error) if error == logged => {}
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "cannot apply a changed file; keeping the previous content");
                logged = error;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_change_is_applied_once_and_a_missing_file_changes_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("list");
        std::fs::write(&path, "one").unwrap();
        let (applied, changes) = mpsc::channel();
        let (stop, stopping) = watch::channel(false);
        let apply = move |text| ready(applied.send(text).map_err(|error| error.to_string()));
        let watching = watch_file(path.clone(), "one".to_owned(), stopping, apply);
        tokio::time::pause();
        let edits = async {
            tokio::time::sleep(POLL_INTERVAL * 2).await;
            std::fs::remove_file(&path).unwrap();
            tokio::time::sleep(POLL_INTERVAL * 2).await;
            std::fs::write(&path, "two").unwrap();
            while changes.try_recv() != Ok("two".to_owned()) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            stop.send(true).unwrap();
        };
        tokio::join!(watching, edits);
        assert!(changes.try_recv().is_err());
    }
}
