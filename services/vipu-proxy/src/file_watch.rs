//! Files that may change while the proxy runs.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

/// How often a file is looked at. Changes are promised to be noticed within a minute; what mounts files may need most of it.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Reads the file now and then, and hands on its text whenever that is another. What cannot be read, or is refused, is
/// logged once and changes nothing.
pub(crate) async fn watch_file<F: Future<Output = Result<(), String>>>(
    path: PathBuf,
    mut known: String,
    mut stopping: watch::Receiver<bool>,
    mut apply: impl FnMut(String) -> F,
) {
    let mut told = String::new();
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        let outcome = match tokio::fs::read_to_string(&path).await {
            Ok(text) if text == known => Ok(false),
            Ok(text) => {
                known = text;
                apply(known.clone()).await.map(|()| true)
            }
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(true) => {
                tracing::info!(file = %path.display(), "applied a change");
                told.clear();
            }
            Ok(false) => {}
            Err(error) if error == told => {}
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "a change is not applied; what was there before stays");
                told = error;
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
    async fn a_change_is_handed_on_once_and_a_missing_file_changes_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("list");
        std::fs::write(&path, "one").unwrap();
        let (tell, told) = mpsc::channel();
        let (stop, stopping) = watch::channel(false);
        let apply = move |text| ready(tell.send(text).map_err(|error| error.to_string()));
        let watching = watch_file(path.clone(), "one".to_owned(), stopping, apply);
        tokio::time::pause();
        let story = async {
            tokio::time::sleep(POLL_INTERVAL * 2).await;
            std::fs::remove_file(&path).unwrap();
            tokio::time::sleep(POLL_INTERVAL * 2).await;
            std::fs::write(&path, "two").unwrap();
            while told.try_recv() != Ok("two".to_owned()) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            stop.send(true).unwrap();
        };
        tokio::join!(watching, story);
        assert!(told.try_recv().is_err());
    }
}
