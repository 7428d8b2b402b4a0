//! Properties of rendered configurations.

use ipu_slurm::render::render;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{NODE, file, input};

proptest! {
    #[test]
    fn any_text_is_rendered_or_refused_and_renders_to_itself(
        lines in vec("(GresTypes|Licenses|SelectTypeParameters|TaskProlog|PartitionName|X)[ =]{1,3}[\"a-zé:,#\\\\ 0-9]{0,9}", 0..6),
    ) {
        let text = format!("{}\n{NODE}", lines.join("\n"));
        if let Ok(first) = render(&input(&text)) {
            let new = file(&first, "slurm.conf").unwrap_or(&text);
            let second = render(&input(new)).map_err(|errors| errors[0].to_string()).unwrap();
            prop_assert_eq!(file(&second, "slurm.conf"), None, "{}", new);
        }
    }
}
