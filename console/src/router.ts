import { createRouter, createWebHistory, type RouteRecordRaw } from 'vue-router'
import Overview from './pages/OverviewPage.vue'
import Runs from './pages/RunsPage.vue'

const routes: RouteRecordRaw[] = [
  { path: '/', name: 'overview', component: Overview, meta: { title: 'Overview' } },
  { path: '/runs', name: 'runs', component: Runs, meta: { title: 'Runs' } },
  { path: '/runs/compare', name: 'compare', component: () => import('./pages/ComparePage.vue'), meta: { title: 'Compare runs' } },
  { path: '/runs/:id', name: 'run', component: () => import('./pages/RunPage.vue'), meta: { title: 'Run' } },
  { path: '/flows', name: 'flows', component: () => import('./pages/FlowsPage.vue'), meta: { title: 'Flows' } },
  { path: '/flows/:flow', name: 'flow', component: () => import('./pages/FlowPage.vue'), meta: { title: 'Flow' } },
  { path: '/entities', name: 'entities', component: () => import('./pages/EntitiesPage.vue'), meta: { title: 'Entities' } },
  { path: '/entities/:type', name: 'entity-type', component: () => import('./pages/EntityTypePage.vue'), meta: { title: 'Entities' } },
  { path: '/entities/:type/:id', name: 'entity', component: () => import('./pages/EntityPage.vue'), meta: { title: 'Entity' } },
  { path: '/queues', name: 'queues', component: () => import('./pages/QueuesPage.vue'), meta: { title: 'Queues' } },
  { path: '/queues/:queue', name: 'queue', component: () => import('./pages/QueuePage.vue'), meta: { title: 'Queue' } },
  { path: '/jobs/:id', name: 'job', component: () => import('./pages/JobPage.vue'), meta: { title: 'Job' } },
  { path: '/dead-letters', name: 'letters', component: () => import('./pages/LettersPage.vue'), meta: { title: 'Dead letters' } },
  { path: '/waits', name: 'waits', component: () => import('./pages/WaitsPage.vue'), meta: { title: 'Waits' } },
  { path: '/waits/:id', name: 'wait', component: () => import('./pages/WaitPage.vue'), meta: { title: 'Wait' } },
  { path: '/schedules', name: 'schedules', component: () => import('./pages/SchedulesPage.vue'), meta: { title: 'Schedules' } },
  { path: '/events', name: 'events', component: () => import('./pages/EventsPage.vue'), meta: { title: 'Events' } },
  { path: '/workers', name: 'workers', component: () => import('./pages/WorkersPage.vue'), meta: { title: 'Workers' } },
  { path: '/alerts', name: 'alerts', component: () => import('./pages/AlertsPage.vue'), meta: { title: 'Alerts' } },
  { path: '/audit', name: 'audit', component: () => import('./pages/AuditPage.vue'), meta: { title: 'Audit' } },
  { path: '/settings', name: 'settings', component: () => import('./pages/SettingsPage.vue'), meta: { title: 'Settings' } },
  { path: '/:rest(.*)', name: 'nowhere', component: () => import('./pages/NowherePage.vue'), meta: { title: 'Not found' } },
]

export const router = createRouter({ history: createWebHistory(new URL(document.baseURI).pathname), routes })
router.afterEach((to) => void (document.title = `${to.params.id ?? to.params.flow ?? to.params.type ?? to.params.queue ?? to.meta.title} · Penstock`))
