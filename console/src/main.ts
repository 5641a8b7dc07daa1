import './styles/tokens.css'
import './styles/base.css'
import { createApp } from 'vue'
import { connect } from './api/session'
import App from './App.vue'
import { router } from './router'

void connect()
createApp(App).use(router).mount('#app')
