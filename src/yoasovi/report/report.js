"use strict";
// Charts drawn as SVG from the numbers in #charts: hover, drag to zoom, toggle a series, arrow keys. No library, no network.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const el = (name, attributes, parent) => {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(node);
    return node;
  };
  const html = (name, attributes, text, parent) => {
    const node = document.createElement(name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text; // text, never markup: names come from users
    if (parent) parent.appendChild(node);
    return node;
  };
  const thick = (s) => (s.kind === "band" ? 10 : s.kind === "bars" || (s.kind === "spans" && !s.faint) ? 6 : 3);
  const colour = (s) => `var(--c${s.colour % 8})`;
  const show = (v) => {
    const a = Math.abs(v);
    if (v === 0) return "0";
    if (a >= 1e6 || a < 1e-3) return v.toExponential(2).replace("e+", "e");
    return Number(v.toPrecision(a >= 1e4 ? 6 : 4)).toLocaleString("en");
  };

  function ticks(low, high, count, log) {
    const out = [];
    if (log) {
      // At 1, 2 and 5 times powers of ten, or at powers of ten alone; deep in a zoom, where there are none, at round numbers.
      for (const [digits, step] of [[[1, 2, 5], 1], [[1], 1], [[1], 2], [[1], 5], [[1], 20]]) {
        out.length = 0;
        for (let e = Math.floor(low); e <= high; e++) for (const m of digits) {
          const v = e + Math.log10(m);
          if (e % step === 0 && v >= low - 1e-9 && v <= high + 1e-9) out.push([v, Math.abs(e) < 4 ? show(Number(`${m}e${e}`)) : `${m}e${e}`]);
        }
        if (out.length <= Math.max(count, 3)) break;
      }
      return out.length > 1 ? out : ticks(10 ** low, 10 ** high, count, false).filter((t) => t[0] > 0).map(([v, label]) => [Math.log10(v), label]);
    }
    const raw = (high - low) / Math.max(count, 1) || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].find((m) => m * power >= raw) * power;
    const digits = Math.max(0, Math.min(8, -Math.floor(Math.log10(step) + 1e-9) + (step / power === 2.5 ? 1 : 0)));
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) {
      const label = Math.abs(v) >= 1e6 || (step < 1e-5 && v !== 0) ? v.toExponential(1).replace("e+", "e") : v.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
      out.push([v, Math.abs(v) < step * 1e-6 ? "0" : label]);
    }
    return out.length > 1 || count > 8 || !(high > low) ? out : ticks(low, high, 2 * Math.max(count, 2), false); // one tick tells no scale
  }

  // The ends of a log axis, moved apart until two ticks or more lie between them.
  function widened(low, high) {
    const all = [];
    for (let e = Math.floor(low) - 1; e <= Math.ceil(high) + 1; e++) for (const m of [1, 2, 5]) all.push(e + Math.log10(m));
    if (all.filter((v) => v >= low - 1e-9 && v <= high + 1e-9).length > 1) return [low, high];
    return [Math.max(...all.filter((v) => v <= low + 1e-9)), Math.min(...all.filter((v) => v >= high - 1e-9 && v > low))];
  }

  function glyph(shape, x, y, r, attributes, parent) {
    if (shape === "square") return el("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, ...attributes }, parent);
    if (shape === "triangle") return el("path", { d: `M${x},${y - r * 1.2}l${r * 1.2},${r * 2.1}h${-r * 2.4}z`, ...attributes }, parent);
    if (shape === "cross") return el("path", { d: `M${x - r},${y - r}l${2 * r},${2 * r}m0,${-2 * r}l${-2 * r},${2 * r}`, ...attributes, "stroke-width": 2, stroke: attributes.fill }, parent);
    if (shape === "star") return el("path", { d: `M${x},${y - 2 * r}L${x + 2 * r},${y}L${x},${y + 2 * r}L${x - 2 * r},${y}z`, ...attributes, stroke: "var(--card)", "stroke-width": 1.5 }, parent);
    return el("circle", { cx: x, cy: y, r, ...attributes }, parent);
  }

  class Plot {
    constructor(figure, spec) {
      this.figure = figure; this.spec = spec;
      this.holder = figure.querySelector(".chart");
      this.hidden = new Set();
      this.fx = spec.x_log ? Math.log10 : (v) => v;
      this.fy = spec.y_log ? Math.log10 : (v) => v;
      this.series = spec.series.map((s) => ({ ...s, px: s.x.map((v) => (v === null ? NaN : this.fx(v))), py: s.y.map((v) => (v === null ? NaN : this.fy(v))), pl: s.low ? s.low.map((v) => (v === null ? NaN : (s.kind === "spans" ? this.fx : this.fy)(v))) : null }));
      this.view = this.first();
      this.tip = html("div", { class: "tip", hidden: "" }, "", this.holder);
      this.legend();
      this.holder.addEventListener("keydown", (e) => this.key(e));
    }
    begin() {
      if (this.svg) return;
      new ResizeObserver(() => this.draw()).observe(this.holder);
      this.draw();
    }
    shown() { return this.series.filter((_, i) => !this.hidden.has(i)); }
    extent(all) {
      let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
      for (const s of all) {
        const across = s.kind === "spans";
        for (const list of [s.px, (across && s.pl) || []]) for (const v of list) if (Number.isFinite(v)) { x0 = Math.min(x0, v); x1 = Math.max(x1, v); }
        for (const list of [s.py, (!across && s.pl) || []]) for (const v of list) if (Number.isFinite(v)) { y0 = Math.min(y0, v); y1 = Math.max(y1, v); }
      }
      if (!(x1 > x0)) { x0 -= 0.5; x1 += 0.5; }
      if (!(y1 > y0)) { y0 -= 0.5; y1 += 0.5; }
      return [x0, x1, y0, y1];
    }
    side() { return this.series.some((s) => s.kind === "bars") ? 0.04 : 0.015; } // bars are as wide as they are, whatever the axis
    first() {
      let [x0, x1, y0, y1] = this.extent(this.shown().length ? this.shown() : this.series);
      if (this.spec.x_log) [x0, x1] = widened(x0, x1);
      if (this.spec.y_log) [y0, y1] = widened(y0, y1);
      const v = this.spec.view, pad = 0.05 * (y1 - y0), floor = this.spec.y_label === "density" ? 0 : y0 - pad, side = this.side() * (x1 - x0);
      return v ? [x0 - side, x1 + side, v[0], v[1]] : [x0 - side, x1 + side, floor, y1 + pad];
    }
    legend() {
      const bar = html("div", { class: "bar", role: "group", "aria-label": "Series" }, undefined, this.figure);
      this.figure.insertBefore(bar, this.holder.nextSibling);
      // Series of one name, a line and its end point, share a button.
      const first = this.series.filter((s, i) => this.series.findIndex((o) => o.name === s.name) === i);
      if (first.length > 1) first.forEach((s) => {
        const button = html("button", { type: "button", "aria-pressed": "true" }, undefined, bar);
        const swatch = el("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, button);
        if (s.kind === "points") glyph(s.shape, 7, 7, 4, { fill: colour(s) }, swatch);
        else el("rect", { x: 0, y: 7 - thick(s) / 2, width: 14, height: thick(s), fill: colour(s), opacity: s.kind === "band" ? 0.45 : 1 }, swatch);
        html("span", {}, s.name, button);
        button.addEventListener("click", () => {
          const on = button.getAttribute("aria-pressed") === "false";
          this.series.forEach((o, i) => { if (o.name === s.name) on ? this.hidden.delete(i) : this.hidden.add(i); });
          button.setAttribute("aria-pressed", String(on));
          this.draw();
        });
      });
      const reset = html("button", { type: "button", class: "reset", hidden: "" }, "Reset zoom", bar);
      reset.addEventListener("click", () => { this.view = this.first(); this.zoomed = false; this.draw(); });
      this.reset = reset;
      if (this.spec.view && !this.spec.rows.length && !this.spec.equal) {
        const whole = html("button", { type: "button", class: "reset" }, "Whole range", bar);
        whole.addEventListener("click", () => { const e = this.extent(this.shown()), p = 0.04 * (e[3] - e[2]), q = this.side() * (e[1] - e[0]); this.view = [e[0] - q, e[1] + q, e[2] - p, e[3] + p]; this.zoomed = true; this.draw(); });
      }
    }
    draw() {
      const w = this.holder.clientWidth, h = this.holder.clientHeight, small = this.figure.dataset.size === "small";
      if (!w || !h) return;
      const [x0, x1, y0, y1] = this.view;
      const rows = this.spec.rows, short = (text, room) => (text.length * 6.4 > room ? text.slice(0, Math.max(3, Math.floor(room / 6.4) - 1)) + "…" : text);
      const yt = rows.length ? rows.map(([label, heading], i) => [rows.length - 1 - i, label, heading]) : ticks(y0, y1, h / 55, this.spec.y_log);
      const longest = Math.max(2, ...yt.map((t) => t[1].length));
      const left = rows.length ? Math.min(14 + 6.8 * longest, 0.4 * w) : Math.min(30 + 6.6 * longest, 92), m = { l: left, r: 12, t: 8, b: 42 };
      const X = (v) => m.l + ((v - x0) / (x1 - x0)) * (w - m.l - m.r), Y = (v) => h - m.b - ((v - y0) / (y1 - y0)) * (h - m.t - m.b);
      this.X = X; this.Y = Y; this.m = m; this.w = w; this.h = h;
      if (this.svg) this.svg.remove();
      const svg = (this.svg = el("svg", { viewBox: `0 0 ${w} ${h}`, height: h, "aria-hidden": "true" }));
      this.holder.insertBefore(svg, this.tip);
      const id = `clip-${this.spec.id}`;
      el("rect", { x: m.l, y: m.t, width: w - m.l - m.r, height: h - m.t - m.b }, el("clipPath", { id }, el("defs", {}, svg)));
      for (const [v, label, heading] of yt) {
        if (Y(v) < m.t - 1 || Y(v) > h - m.b + 1) continue;
        if (!heading) el("line", { x1: m.l, x2: w - m.r, y1: Y(v), y2: Y(v), class: "gridline" }, svg);
        const place = heading ? { x: 4, class: "heading" } : { x: m.l - 7, "text-anchor": "end" };
        el("text", { ...place, y: Y(v) + 4 }, svg).textContent = short(label, heading ? w : m.l - 10);
      }
      for (const [v, label] of ticks(x0, x1, (w - m.l) / (small ? 75 : 90), this.spec.x_log)) {
        if (X(v) < m.l - 1 || X(v) > w - m.r + 1) continue;
        el("line", { x1: X(v), x2: X(v), y1: rows.length ? m.t : h - m.b, y2: h - m.b + 4, class: rows.length ? "gridline" : "frame" }, svg);
        el("text", { x: Math.min(X(v), w - m.r - 3.2 * label.length), y: h - m.b + 17, "text-anchor": "middle" }, svg).textContent = label;
      }
      el("line", { x1: m.l, x2: w - m.r, y1: h - m.b, y2: h - m.b, class: "frame" }, svg);
      el("text", { x: (m.l + w - m.r) / 2, y: h - 8, "text-anchor": "middle" }, svg).textContent = short(this.spec.x_label, w - m.l);
      el("text", { transform: `translate(12 ${(h - m.b) / 2}) rotate(-90)`, "text-anchor": "middle" }, svg).textContent = short(this.spec.y_label, h - m.b);
      const body = el("g", { "clip-path": `url(#${id})` }, svg);
      this.series.forEach((s, i) => { if (!this.hidden.has(i)) this.paint(s, body); });
      this.cursor = el("line", { y1: m.t, y2: h - m.b, class: "cursor", visibility: "hidden" }, svg);
      this.ring = el("circle", { r: 5, fill: "none", "stroke-width": 2, visibility: "hidden" }, svg);
      this.brush = el("rect", { class: "brush", visibility: "hidden" }, svg);
      this.reset.hidden = !this.zoomed;
      this.listen(svg);
    }
    paint(s, parent) {
      const { X, Y } = this, g = el("g", { "data-series": s.name }, parent);
      const path = (ys) => { let d = "", pen = "M"; s.px.forEach((v, i) => { if (!Number.isFinite(v) || !Number.isFinite(ys[i])) { pen = "M"; return; } d += `${pen}${X(v).toFixed(1)},${Y(ys[i]).toFixed(1)}`; pen = "L"; }); return d; };
      if (s.kind === "band") {
        let back = "";
        for (let i = s.px.length - 1; i >= 0; i--) back += `L${X(s.px[i]).toFixed(1)},${Y(s.pl[i]).toFixed(1)}`;
        el("path", { d: path(s.py) + back + "z", fill: colour(s), opacity: 0.26 }, g);
        el("path", { d: path(s.py), fill: "none", stroke: colour(s), opacity: 0.75 }, g);
      } else if (s.kind === "bars") {
        s.px.forEach((v, i) => { if (Number.isFinite(s.py[i])) el("line", { x1: X(v), x2: X(v), y1: Y(s.py[i]), y2: Y(s.pl[i]), stroke: colour(s), "stroke-width": 6, "stroke-linecap": "round", opacity: 0.4 }, g); });
      } else if (s.kind === "spans") {
        s.px.forEach((v, i) => el("line", { x1: X(s.pl[i]), x2: X(v), y1: Y(s.py[i]), y2: Y(s.py[i]), stroke: colour(s), "stroke-width": s.faint ? 1.8 : 5.5, "stroke-linecap": "round" }, g));
      } else if (s.kind === "line") {
        el("path", { d: path(s.py), fill: "none", stroke: colour(s), "stroke-width": s.faint ? 3 : 1.9, "stroke-linejoin": "round", opacity: s.faint ? 0.85 : 1 }, g);
      } else {
        const r = s.px.length > 150 ? 2.3 : 3.4;
        s.px.forEach((v, i) => { if (Number.isFinite(v) && Number.isFinite(s.py[i])) glyph(s.shape, X(v), Y(s.py[i]), r, { fill: colour(s), opacity: s.faint ? 0.55 : 0.85 }, g); });
      }
    }
    place(event) {
      const box = this.svg.getBoundingClientRect();
      return [((event.clientX - box.left) * this.w) / box.width, ((event.clientY - box.top) * this.h) / box.height];
    }
    listen(svg) {
      let from = null;
      svg.addEventListener("pointermove", (e) => {
        const [x, y] = this.place(e);
        if (from) {
          const a = Math.min(x, from[0]), b = Math.min(y, from[1]);
          for (const [k, v] of Object.entries({ x: a, y: b, width: Math.abs(x - from[0]), height: Math.abs(y - from[1]), visibility: "visible" })) this.brush.setAttribute(k, v);
        } else this.near(x, y);
      });
      svg.addEventListener("pointerdown", (e) => { if (e.pointerType !== "touch") { from = this.place(e); svg.setPointerCapture(e.pointerId); } else this.near(...this.place(e)); });
      svg.addEventListener("pointerup", (e) => {
        if (!from) return;
        const [x, y] = this.place(e), [u, v] = from;
        from = null;
        if (Math.abs(x - u) > 8 && Math.abs(y - v) > 8) this.zoom(Math.min(x, u), Math.max(x, u), Math.max(y, v), Math.min(y, v));
        else this.brush.setAttribute("visibility", "hidden");
      });
      svg.addEventListener("pointerleave", () => { if (!from) this.leave(); });
      svg.addEventListener("dblclick", () => { this.view = this.first(); this.zoomed = false; this.draw(); });
    }
    zoom(a, b, c, d) {
      const [x0, x1, y0, y1] = this.view, { m, w, h } = this;
      const ux = (p) => x0 + ((p - m.l) / (w - m.l - m.r)) * (x1 - x0), uy = (p) => y0 + ((h - m.b - p) / (h - m.t - m.b)) * (y1 - y0);
      this.view = [ux(a), ux(b), uy(c), uy(d)];
      this.zoomed = true;
      this.draw();
    }
    near(x, y) {
      let best = null, least = Infinity;
      for (const s of this.shown()) s.px.forEach((v, i) => {
        if (!Number.isFinite(v) || !Number.isFinite(s.py[i])) return;
        const within = s.kind === "spans" && this.X(s.pl[i]) <= x && x <= this.X(v);
        const dx = within ? 0 : this.X(v) - x, dy = this.Y(s.py[i]) - y, far = s.kind === "points" || s.kind === "spans" ? dx * dx + dy * dy : 4 * dx * dx + 0.25 * dy * dy;
        if (far < least) { least = far; best = [s, i]; }
      });
      best && least < 6400 ? this.point(...best) : this.leave();
    }
    point(s, i) {
      const x = this.X(s.px[i]), y = this.Y(s.py[i]);
      this.at = [this.series.indexOf(s), i];
      this.cursor.setAttribute("x1", x); this.cursor.setAttribute("x2", x); this.cursor.setAttribute("visibility", "visible");
      this.ring.setAttribute("cx", x); this.ring.setAttribute("cy", y); this.ring.setAttribute("stroke", colour(s)); this.ring.setAttribute("visibility", "visible");
      this.tip.hidden = false;
      const row = this.spec.rows[this.spec.rows.length - 1 - s.y[i]];
      const range = s.low && (s.kind === "spans" ? `${show(s.low[i])} to ${show(s.x[i])}` : `${show(s.x[i])} · ${show(s.low[i])} to ${show(s.y[i])}`);
      this.tip.textContent = [row && row[0], s.name, range || (row ? show(s.x[i]) : `${show(s.x[i])} · ${show(s.y[i])}`)].filter(Boolean).join(" · ");
      const scale = this.holder.clientWidth / this.w, wide = this.tip.offsetWidth;
      this.tip.style.left = `${Math.max(0, Math.min(x * scale + 12, this.holder.clientWidth - wide))}px`;
      this.tip.style.top = `${Math.max(0, y * scale - 34)}px`;
    }
    leave() { this.tip.hidden = true; this.cursor.setAttribute("visibility", "hidden"); this.ring.setAttribute("visibility", "hidden"); }
    key(e) {
      const all = this.shown();
      if (!all.length || e.target !== this.holder) return;
      if (e.key === "Escape" || e.key === "0") { this.view = this.first(); this.zoomed = false; this.draw(); this.leave(); return; }
      if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(e.key)) return;
      e.preventDefault();
      let [k, i] = this.at || [this.series.indexOf(all[0]), -1];
      if (e.key === "ArrowUp" || e.key === "ArrowDown") { const j = all.indexOf(this.series[k]); k = this.series.indexOf(all[(j + (e.key === "ArrowUp" ? 1 : all.length - 1)) % all.length]); }
      const s = this.series[k];
      i = Math.max(0, Math.min(s.px.length - 1, i + (e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0)));
      this.point(s, i);
    }
  }

  // Charts get their legends at once and are drawn when they come near the screen: a long report opens fast and keeps still.
  const figures = [...document.querySelectorAll("figure[id]")].filter((f) => charts[f.id]);
  const plots = new Map(figures.map((f) => [f.id, new Plot(f, charts[f.id])]));
  const make = (figure) => plots.get(figure.id).begin();
  const watch = new IntersectionObserver((seen) => seen.forEach((s) => { if (s.isIntersecting) { make(s.target); watch.unobserve(s.target); } }), { rootMargin: "600px" });
  figures.forEach((f) => watch.observe(f));
  window.addEventListener("beforeprint", () => { document.querySelectorAll("details").forEach((d) => (d.open = true)); figures.forEach(make); });

  document.querySelectorAll(".tabs").forEach((tabs) => {
    const buttons = [...tabs.querySelectorAll("button")];
    buttons.forEach((b) => b.addEventListener("click", () => buttons.forEach((o) => {
      const on = o === b;
      o.setAttribute("aria-selected", String(on));
      const panel = document.getElementById(o.getAttribute("aria-controls"));
      panel.hidden = !on;
      if (on) { make(panel); plots.get(panel.id).draw(); }
    })));
  });
  document.querySelectorAll("input[type=search]").forEach((box) => box.addEventListener("input", () => {
    const want = box.value.toLowerCase();
    document.querySelectorAll(`#${box.getAttribute("aria-controls")} tbody tr`).forEach((row) => (row.hidden = !row.firstElementChild.textContent.toLowerCase().includes(want)));
  }));
  document.querySelectorAll(".copy").forEach((b) => b.addEventListener("click", async () => {
    const text = document.getElementById(b.dataset.for).textContent;
    try { await navigator.clipboard.writeText(text); b.textContent = "Copied"; } catch { b.textContent = "Select and copy"; }
  }));
  document.documentElement.dataset.ready = "1";
})();
