//! Kueue and JobSet for a node: images of their programs, and their own charts.

use std::path::PathBuf;

use crate::image::Image;
use crate::tools::{Tool, Tools};

/// User and group of the programs, as in their images.
const USER: &str = "65532:65532";

/// A program with its image and its chart.
#[derive(Clone, Debug)]
pub struct Charted {
    /// Name of the release and of the namespace.
    pub name: &'static str,
    /// Image `NAME:test`.
    pub image: Image,
    /// Folder of the chart.
    pub chart: PathBuf,
}

/// Returns Kueue and JobSet of these tools.
#[must_use]
pub fn kueue_and_jobset(tools: &Tools) -> [Charted; 2] {
    Tool::KUEUE.map(|tool| {
        let name = tool.name();
        let image = Image::scratch(&format!("{name}:test")).file(&tools.path(tool), "/manager");
        Charted {
            name,
            image: image.entrypoint(["/manager"]).user(USER),
            chart: tools.chart(tool),
        }
    })
}
