//! What every page of ours is made of: the library that draws charts (uPlot, MIT; its licence
//! lies beside it), our own few words to it, and the style. In the executable, so that no page
//! needs anything from elsewhere.

/// uPlot.
pub const UPLOT_JS: &str = include_str!("uplot.min.js");

/// uPlot's style.
pub const UPLOT_CSS: &str = include_str!("uplot.min.css");

/// Colours, axes and lines of all charts: the global object `drawing`.
pub const DRAWING_JS: &str = include_str!("drawing.js");

/// Colours, text and tables.
pub const STYLE_CSS: &str = include_str!("style.css");
