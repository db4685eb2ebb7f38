#pragma once
// The parts of run.html that are the same for every run.
#include <string_view>

namespace glim {

inline constexpr std::string_view kReportStyle = R"css(
:root{color-scheme:light dark;--bg:#fbfbfc;--card:#fff;--ink:#1c2430;--soft:#667085;--edge:#e3e6eb;--s0:#2563eb;--s1:#d97706;--s2:#059669;--s3:#9333ea}
@media(prefers-color-scheme:dark){:root{--bg:#14171c;--card:#1b2027;--ink:#e6e9ee;--soft:#98a2b3;--edge:#2c333d;--s0:#60a5fa;--s1:#fbbf24;--s2:#34d399;--s3:#c084fc}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px}h1{font-size:22px;margin:0}h2{font-size:17px;margin:32px 0 10px}
small,.soft{color:var(--soft)}.badge{display:inline-block;padding:1px 10px;border-radius:10px;border:1px solid var(--edge);font-size:13px;margin-left:8px;vertical-align:3px}
.badge.running{color:var(--s0)}.badge.finished{color:var(--s2)}.badge.stopped{color:var(--s1)}.badge.failed{color:#dc2626}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:18px 0}
.tile,figure,.card{background:var(--card);border:1px solid var(--edge);border-radius:8px}.tile{padding:10px 14px}
.tile b{display:block;font-size:20px;font-variant-numeric:tabular-nums}.tile span{color:var(--soft);font-size:13px}
.bar{height:6px;background:var(--edge);border-radius:3px;overflow:hidden;margin-top:12px}.bar i{display:block;height:100%;background:var(--s0)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:12px}figure{margin:0;padding:12px 14px 6px}
figcaption{font-size:14px;margin-bottom:4px}.key{margin-left:14px;font-size:13px}.key:before{content:"";display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:5px;vertical-align:4px;background:currentColor}
.k0{color:var(--s0)}.k1{color:var(--s1)}.k2{color:var(--s2)}.k3{color:var(--s3)}
.chart{width:100%;display:block;overflow:visible}.grid{stroke:var(--edge)}.axis{stroke:var(--soft)}.tick{fill:var(--soft);font-size:11px}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.s0{stroke:var(--s0)}.s1{stroke:var(--s1)}.s2{stroke:var(--s2)}.s3{stroke:var(--s3)}
circle.s0{fill:var(--s0)}circle.s1{fill:var(--s1)}.cursor line{stroke:var(--soft);stroke-dasharray:3 3}.cursor text{fill:var(--ink);font-size:12px}.cursor rect{fill:var(--card);stroke:var(--edge)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}td,th{padding:4px 12px;text-align:right;border-bottom:1px solid var(--edge);font-weight:400}
th{color:var(--soft);font-size:13px}td:first-child,th:first-child,.text{text-align:left}.card{padding:10px 14px;overflow-x:auto}
pre{margin:0;font:13px/1.45 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}.share{display:inline-block;height:10px;background:var(--s0);border-radius:2px;opacity:.75}
)css";

// The read-out under the pointer. Without scripts the charts are there all the same.
inline constexpr std::string_view kReportScript = R"js(
for(const svg of document.querySelectorAll('.chart')){
  const cursor=svg.querySelector('.cursor'),lines=[...svg.querySelectorAll('.line')].map(l=>({name:l.dataset.name,at:l.dataset.points.split(';').filter(Boolean).map(p=>p.split(',').map(Number))}));
  svg.addEventListener('pointerleave',()=>cursor.replaceChildren());
  svg.addEventListener('pointermove',e=>{
    const box=svg.getBoundingClientRect(),x=(e.clientX-box.left)/box.width*560;cursor.replaceChildren();
    const make=(tag,attributes,text)=>{const n=document.createElementNS('http://www.w3.org/2000/svg',tag);for(const k in attributes)n.setAttribute(k,attributes[k]);if(text!==undefined)n.textContent=text;cursor.append(n)};
    let first=null;const rows=[];
    for(const l of lines){if(!l.at.length)continue;let best=l.at[0];for(const p of l.at)if(Math.abs(p[0]-x)<Math.abs(best[0]-x))best=p;first??=best;rows.push((lines.length>1?l.name+' ':'')+best[3])}
    if(!first)return;
    make('line',{x1:first[0],x2:first[0],y1:16,y2:210});
    const text='step '+first[2]+':  '+rows.join('   '),width=text.length*6.4+14,left=Math.min(Math.max(first[0]-width/2,62),546-width);
    make('rect',{x:left,y:16,width,height:20,rx:4});make('text',{x:left+7,y:30},text);
  });
}
)js";

}  // namespace glim
