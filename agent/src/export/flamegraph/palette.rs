//! The colours: one row per reason of a wait in which a pod lost time, one for waits that may be idleness, and one for
//! idleness. Pure.
//!
//! Colours differ in lightness as well as in hue, after the palettes of Okabe and Ito and of Tol, so that colour-blind
//! people can distinguish them; the names are in the legend and in the picture, too. Only idleness is grey. The list of
//! pods, the pages and the flame graphs have the same classes.

use std::fmt::Write;

use super::tree::Class;
use crate::model::wait::WaitReason;

/// The class in style sheets, the colour for dark text on a white page, and the colour for light text on a black page.
struct Colour(&'static str, &'static str, &'static str);

/// Returns the colour of a reason.
const fn of_reason(reason: WaitReason) -> Colour {
    match reason {
        WaitReason::Futex => Colour("futex", "#e69f00", "#8a5a00"),
        WaitReason::Poll => Colour("poll", "#a9c1f5", "#2c4f9e"),
        WaitReason::Disk => Colour("disk", "#ee7f4b", "#a13d0c"),
        WaitReason::Network => Colour("network", "#7cc0f0", "#155e91"),
        WaitReason::PageFault => Colour("page_fault", "#d88fb9", "#86336a"),
        WaitReason::Pipe => Colour("pipe", "#4fc3a1", "#00664b"),
        WaitReason::Sleep => Colour("sleep", "#9fd8d0", "#1d5f57"),
        WaitReason::KernelLock => Colour("kernel_lock", "#f0e442", "#6f6800"),
        WaitReason::Child => Colour("child", "#b3a7e6", "#51428f"),
        WaitReason::Stopped => Colour("stopped", "#c9b8a8", "#5f4632"),
        WaitReason::MemoryLimit => Colour("memory_limit", "#e3a6d8", "#862a74"),
        WaitReason::RunQueue => Colour("run_queue", "#f4a6a6", "#8f1d2c"),
        WaitReason::Throttled => Colour("throttled", "#e8798a", "#a30d33"),
        WaitReason::Other => Colour("other", "#c3c58a", "#54561f"),
        WaitReason::Unknown => Colour("unknown", "#d9b0a3", "#74402f"),
    }
}

/// The class of idle and of parked threads.
pub const IDLE: &str = "idle";
/// The class of waits of which the data does not tell whether they are trouble.
pub const UNCLEAR: &str = "unclear";

/// The colours of waits that are not surely trouble.
const REST: [Colour; 2] = [Colour(IDLE, "#c9ced4", "#4a525b"), Colour(UNCLEAR, "#efe3c2", "#5b5130")];
const USER: Colour = Colour("user", "#f3b562", "#8a5410");
const KERNEL: Colour = Colour("kernel", "#7cc0f0", "#155e91");
const ALL: Colour = Colour("all", "#dfe3e8", "#333a42");

/// Returns the class in style sheets.
pub(super) const fn class(class: Class) -> &'static str {
    match class {
        Class::All => ALL.0,
        Class::Waiting { reason, .. } => of_reason(reason).0,
        Class::Unclear { .. } => UNCLEAR,
        Class::Idle { .. } => IDLE,
        Class::User => USER.0,
        Class::Kernel => KERNEL.0,
    }
}

/// Returns all colours.
fn all() -> impl Iterator<Item = Colour> {
    WaitReason::ALL.iter().copied().map(of_reason).chain(REST).chain([USER, KERNEL, ALL])
}

/// Returns the style sheet's rules for the frames, for pages with a light and with a dark background.
pub(super) fn rules() -> String {
    let colours: Vec<Colour> = all().collect();
    let mut css = String::new();
    // Writing to a string does not fail.
    for Colour(class, light, _) in &colours {
        write!(css, ".{class}{{fill:{light};background:{light}}}").ok();
    }
    css.push_str("@media(prefers-color-scheme:dark){");
    for Colour(class, _, dark) in &colours {
        write!(css, ".{class}{{fill:{dark};background:{dark}}}").ok();
    }
    css.push('}');
    css
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the relative luminance by WCAG 2.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn names_can_be_read_on_every_colour() {
        for Colour(class, light, dark) in all() {
            assert!(contrast(light, "#14171a") >= 4.5, "{class}: {}", contrast(light, "#14171a"));
            assert!(contrast(dark, "#f2f4f6") >= 4.5, "{class}: {}", contrast(dark, "#f2f4f6"));
        }
    }

    /// A colour is grey if its channels are nearly equal.
    #[test]
    fn only_idleness_is_grey() {
        let is_grey = |colour: &str| {
            let channels = [1, 3, 5].map(|at| u8::from_str_radix(&colour[at..at + 2], 16).unwrap());
            channels.iter().max().unwrap() - channels.iter().min().unwrap() < 24
        };
        let told = |Colour(class, light, dark)| (is_grey(light) || is_grey(dark)).then_some(class);
        assert_eq!(all().filter_map(told).collect::<Vec<_>>(), [IDLE, ALL.0]);
    }

    #[test]
    fn a_class_is_the_reasons_name() {
        for reason in WaitReason::ALL.iter().copied() {
            assert_eq!(class(Class::Waiting { reason, kernel: true }), reason.name());
        }
    }
}
