//! The version of the Slurm that loads the plugin.
//!
//! Slurm refuses a SPANK plugin whose version differs from its own in year or month. The interface that this
//! plugin uses is the same in all versions of the table.

/// The version that the plugin names if the loading Slurm is unknown: 22.05.
pub(crate) const BUILT_IN: u32 = encode(22, 5);

/// Versions of `libslurm` with the version of Slurm that they belong to.
const VERSIONS: [(u32, u32); 8] = [
    (38, encode(22, 5)),
    (39, encode(23, 2)),
    (40, encode(23, 11)),
    (41, encode(24, 5)),
    (42, encode(24, 11)),
    (43, encode(25, 5)),
    (44, encode(25, 11)),
    (45, encode(26, 5)),
];

/// Returns Slurm's version for the result of `slurm_api_version`; `None` if the table does not have it.
pub(crate) fn of_api(api_version: u64) -> Option<u32> {
    let library = u32::try_from((api_version >> 16) & 0xff).ok()?;
    VERSIONS
        .iter()
        .find(|(known, _)| *known == library)
        .map(|(_, version)| *version)
}

/// Encodes a version as `SLURM_VERSION_NUM` of Slurm's headers does, with micro version 0.
const fn encode(year: u32, month: u32) -> u32 {
    (year << 16) | (month << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_libraries_have_a_version_and_others_keep_the_built_in_one() {
        assert_eq!(of_api(38 << 16), Some(BUILT_IN));
        assert_eq!(of_api((42 << 16) + (1 << 8) + 7), Some(0x0018_0b00));
        assert_eq!(of_api(45 << 16), Some(0x001a_0500));
        assert_eq!(of_api(46 << 16), None);
        assert_eq!(of_api(0), None);
    }
}
