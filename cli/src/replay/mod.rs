//! `forerun replay`.
use crate::args::ReplayArgs;
use crate::failure::Outcome;
pub fn replay(_args: &ReplayArgs) -> Outcome {
    Ok(())
}
