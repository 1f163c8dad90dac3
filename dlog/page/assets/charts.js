// Pictures as SVG: the line of under-replicated ledgers, and the segments of a stream on a time line.

const SPACE = "http://www.w3.org/2000/svg";

function shape(name, attributes, text) {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Draw the last values of a counter as a line. */
export function drawSpark(box, values) {
  const most = Math.max(1, ...values);
  const step = values.length > 1 ? 100 / (values.length - 1) : 0;
  const points = values.map((value, index) => `${(index * step).toFixed(2)},${(28 - (value / most) * 26).toFixed(2)}`);
  const svg = shape("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (points.length > 1) svg.append(shape("path", { d: `M${points.join("L")}` }));
  box.replaceChildren(svg);
}

/** Draw segments from their first to their last moment. Gaps in time stay gaps. */
export function drawTimeline(box, segments, nowMs, clock) {
  const width = 1000;
  const known = segments.filter((each) => each.began_ms !== null);
  box.setAttribute("aria-label", `${segments.length} segments on a time line; the table below has their numbers`);
  if (known.length === 0) { box.replaceChildren(); return; }
  const first = Math.min(...known.map((each) => each.began_ms));
  const span = Math.max(1, nowMs - first);
  const at = (ms) => ((ms - first) / span) * width;
  const svg = shape("svg", { viewBox: `0 0 ${width} 88`, preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(shape("line", { x1: 0, x2: width, y1: 62, y2: 62 }));
  for (const each of known) {
    const start = at(each.began_ms);
    const end = at(each.is_completed ? each.completed_ms : nowMs);
    const kind = each.truncation === "active" ? (each.is_completed ? "done" : "open") : "cut";
    const box_ = shape("rect", { x: start, y: 14, width: Math.max(4, end - start - 2), height: 38, rx: 4, class: kind });
    box_.append(shape("title", {}, `segment ${each.segment_seqno}: ${each.records} records`));
    svg.append(box_);
  }
  const labels = document.createElement("div");
  labels.className = "row between quiet";
  for (const moment of [first, first + span / 2, nowMs]) {
    const label = document.createElement("span");
    label.textContent = clock(moment);
    labels.append(label);
  }
  box.replaceChildren(svg, labels);
}
